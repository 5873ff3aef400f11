"""Ranks whose times vary wait for each other, most of all where loads are even."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.sharding.pricing.measured_tables import straggling_us


@pytest.mark.parametrize("times", [[10.0, 10.0], [10.0, 9.5], [10.0, 5.0], [10.0] * 8, [10.0, 9.9, 9.0, 4.0]])
def test_the_longest_of_times_that_vary_is_as_drawn(times):
    drawn = np.random.default_rng(0).normal(times, 0.05 * np.array(times), (400_000, len(times)))
    expected = drawn.max(axis=1).mean() - max(times)
    assert straggling_us(np.array(times), 0.05) == pytest.approx(expected, abs=0.02)


def test_even_loads_wait_most_and_one_rank_never():
    even, uneven = straggling_us(np.array([[10.0, 10.0], [10.0, 8.0]]), 0.05)
    assert even > uneven >= 0.0
    assert straggling_us(np.array([[10.0]]), 0.05) == 0.0
    assert straggling_us(np.array([[10.0, 10.0]]), 0.0) == 0.0


def test_ranks_with_nothing_to_do_keep_nobody_waiting():
    assert straggling_us(np.zeros((1, 4)), 0.05) == pytest.approx(0.0)
    assert straggling_us(np.array([[10.0, 0.0]]), 0.05) == pytest.approx(0.0, abs=1e-9)
