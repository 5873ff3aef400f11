"""Lookups of ranks that share a memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.hardware.spec import ContentionSpec
from stepsight.simulate.contention import side_by_side, slowdown_of

LOADS = st.lists(st.floats(0.0, 1e5), min_size=1, max_size=8)


def test_equal_ranks_take_what_the_model_states() -> None:
    np.testing.assert_allclose(side_by_side(np.array([30.0, 30.0]), 1.5, 2), [30.0, 30.0])


def test_a_rank_alone_has_the_memory_to_itself() -> None:
    np.testing.assert_allclose(side_by_side(np.array([0.0, 30.0]), 1.5, 2), [0.0, 20.0])


def test_the_longer_one_goes_on_alone() -> None:
    # 12 of the second's 20 alone are done when the first ends after 18; the rest takes 8.
    np.testing.assert_allclose(side_by_side(np.array([18.0, 30.0]), 1.5, 2), [18.0, 26.0])


def test_nodes_do_not_slow_each_other() -> None:
    times = np.array([[10.0, 0.0, 40.0, 40.0]])
    np.testing.assert_allclose(side_by_side(times, 2.0, 2), [[5.0, 0.0, 40.0, 40.0]])


@pytest.mark.parametrize(("slowdown", "per_node"), [(1.0, 4), (1.5, 1)])
def test_memories_of_their_own_change_nothing(slowdown: float, per_node: int) -> None:
    times = np.array([3.0, 1.0, 2.0, 5.0])
    np.testing.assert_array_equal(side_by_side(times, slowdown, per_node), times)


@given(LOADS, st.floats(1.0, 3.0))
def test_times_lie_between_alone_and_together_and_keep_their_order(loads: list[float], slow: float) -> None:
    together = np.array(loads)
    done = side_by_side(together, slow, len(loads))
    assert np.all(done <= together * (1 + 1e-9) + 1e-9)
    assert np.all(done >= together / slow * (1 - 1e-9) - 1e-9)
    assert np.all(np.diff(done[np.argsort(together, kind="stable")]) >= -1e-6)


def test_only_lookups_share() -> None:
    contention = ContentionSpec(lookups_forward=1.1, lookups_backward=1.3)
    families = ("embedding", "embedding_backward", "gemm")
    assert [slowdown_of(contention, family) for family in families] == [1.1, 1.3, 1.0]
