"""Overlap of intervals, rank by rank and for many ranks at once."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.simulate.intervals import covered, covered_by_rank, union


@pytest.mark.parametrize(("asked", "busy"), [(30, 7), (7, 30), (1, 1), (100, 90), (0, 3), (3, 0)])
def test_many_ranks_at_once_give_what_each_gives_alone(asked: int, busy: int) -> None:
    rng = np.random.default_rng(asked)
    start, lies = rng.integers(0, 100, (40, asked)) * 1.0, rng.integers(0, 100, (40, busy)) * 1.0
    end, until = start + rng.integers(0, 20, start.shape), lies + rng.integers(0, 30, lies.shape)
    found = covered_by_rank(start, end, lies, until)
    for rank in range(40):
        alone = covered(start[rank], end[rank], *union(lies[rank], until[rank]))
        assert found[rank] == pytest.approx(alone)
