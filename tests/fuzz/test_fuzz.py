"""A short run of the fuzzers; ``scripts/fuzz --minutes 30`` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS, Target, outcome

CASES, FEW = 25, 8
SLOW = ("llama3_70b_3d.toml", "llama.toml", "bert.toml", "gpt2.toml", "samples.jsonl", "output.json")
"""Targets whose every answer takes a second."""


@pytest.mark.parametrize("target", TARGETS, ids=[t.name for t in TARGETS])
def test_damaged_input_is_answered_or_refused(target: Target, tmp_path) -> None:
    outcomes = {outcome(target, seed, tmp_path) for seed in range(FEW if target.name in SLOW else CASES)}
    assert outcomes <= {"answer", "refused"}
