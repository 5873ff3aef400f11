"""Cases that a long run of the fuzzer once found to be neither an answer nor a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, outcome

FOUND = (
    ("profile.json", 401292),
    ("calibrated.txt", 400411),
    ("calibrated.txt", 401955),
    ("nodes.json", 400944),
)


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_a_case_once_found_is_an_answer_or_a_refusal(name: str, seed: int, tmp_path: Path) -> None:
    target = next(t for t in TARGETS if t.name == name)
    assert outcome(target, seed, tmp_path) in ("answer", "refused")
