"""Collectives that share a link, and what compute and communication do to each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepsight.collectives.contention import contention_of, sharing_a_link

from .platforms import platform

TIMES = st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 50)), min_size=1, max_size=6)


@given(TIMES)
def test_sharing_is_never_faster_than_alone_nor_slower_than_in_turn(pairs):
    alone = np.array([floor + work for work, floor in pairs])
    floor = np.array([floor for _, floor in pairs])
    together = sharing_a_link(alone, floor)
    assert (together >= alone * (1 - 1e-9)).all()
    assert together.max() <= alone.sum() * (1 + 1e-9)


def test_two_alike_take_twice_as_long_but_for_the_floor():
    assert sharing_a_link([110, 110], [10, 10]).tolist() == [210, 210]


def test_a_small_one_leaves_the_link_to_the_large_one():
    assert sharing_a_link([20, 100], [0, 0]).tolist() == [40, 120]


def test_one_alone_is_not_slowed():
    assert sharing_a_link([100], [10]).tolist() == [100]


def test_overlap_costs_both_sides_and_says_where_that_was_seen():
    nvlink = contention_of(platform())
    assert nvlink.compute_under_comm > 1 and nvlink.comm_under_compute > 1 and "traces" in nvlink.source
    assert "assumed" in contention_of(platform("L4", link="pcie", gbps=24)).source


def test_a_single_gpu_has_nothing_to_contend_with():
    assert contention_of(platform(gpus=1)).comm_under_compute == 1
