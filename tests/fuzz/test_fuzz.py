"""A short run of the fuzzers; ``scripts/fuzz --minutes 30`` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS, Target, outcome

CASES = 25


@pytest.mark.parametrize("target", TARGETS, ids=[t.name for t in TARGETS])
def test_damaged_input_is_answered_or_refused(target: Target, tmp_path) -> None:
    outcomes = {outcome(target, seed, tmp_path) for seed in range(CASES)}
    assert outcomes <= {"answer", "refused"}
