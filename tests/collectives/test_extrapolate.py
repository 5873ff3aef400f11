"""Carrying curves to other groups, collectives and machines."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.collectives.curve import Curve
from stepsight.collectives.extrapolate import OverNodes, between_ranks, stretched, to_kind, to_ranks
from stepsight.collectives.measured import load_catalogue
from stepsight.collectives.roofline import GroupShape

SIZES = 2.0 ** np.arange(8, 31)
EIGHT, SIXTEEN = GroupShape(8, 1, 8), GroupShape(16, 2, 8)


def line(latency_us: float, gbps: float) -> Curve:
    return Curve.fit(SIZES, latency_us + SIZES / (gbps * 1e3))


def test_half_the_link_takes_twice_as_long_for_large_messages_only():
    slow = stretched(line(10, 100), 2.0)
    assert slow.time_us(1.0) == pytest.approx(10, rel=0.01)
    assert slow.time_us(1e9) == pytest.approx(10 + 2e4, rel=0.01)


def test_all_reduce_stands_on_reduce_scatter_and_all_gather():
    half = line(10, 100)
    whole = to_kind((("reduce_scatter", half), ("all_gather", half)), "all_reduce", EIGHT)
    assert whole.time_us(1e8) == pytest.approx(2 * half.time_us(1e8), rel=0.01)


def test_doubling_and_halving_a_group_undo_each_other():
    transfer = load_catalogue().rank_transfer
    start = line(10, 100)
    there = to_ranks(start, "all_gather", 4, 8, transfer)
    back = to_ranks(there, "all_gather", 8, 4, transfer)
    np.testing.assert_allclose(back.time_us(SIZES[2:-2]), start.time_us(SIZES[2:-2]), rtol=0.15)


def test_a_larger_group_has_the_longer_latency():
    transfer = load_catalogue().rank_transfer
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        assert to_ranks(line(10, 100), kind, 4, 8, transfer).time_us(256) > 11


def test_a_group_size_between_two_lies_between_them():
    a, b = line(10, 100), line(20, 100)
    six = between_ranks((4, a), (8, b), "all_reduce", 6)
    assert a.time_us(256) < six.time_us(256) < b.time_us(256)


def test_over_nodes_time_follows_the_nic_and_the_steps():
    start = line(20, 100)
    slower = OverNodes("all_reduce", SIXTEEN, 25, SIXTEEN, 12.5).carried(start)
    assert slower.time_us(1e9) == pytest.approx(2 * start.time_us(1e9), rel=0.01)
    wider = OverNodes("all_gather", SIXTEEN, 25, GroupShape(64, 8, 8), 25).carried(start)
    assert wider.time_us(256) == pytest.approx(4 * start.time_us(256), rel=0.05)


def test_more_than_two_nodes_are_never_faster_than_their_wires():
    two = line(20, 500)
    four = OverNodes("all_reduce", SIXTEEN, 50, GroupShape(32, 4, 8), 50).carried(two)
    assert four.time_us(1e9) >= 1e9 * 2 * 31 / 32 / 8 / 50e3


def test_the_range_of_a_carried_curve_is_known_before_it_is_made():
    for largest in (1e4, 1e9, 1e11):
        curve = Curve(np.array([1e3, largest]), np.array([10.0, 1000.0]))
        for kind, wanted in (("all_reduce", SIXTEEN), ("all_gather", GroupShape(64, 8, 8))):
            way = OverNodes(kind, SIXTEEN, 25, wanted, 50)
            assert way.range_bytes(curve) == way.carried(curve).range_bytes


def test_a_step_of_a_longer_ring_takes_as_long_as_one_of_the_same_bytes():
    start = Curve(np.array([1e3, 16e5, 16e6]), np.array([30.0, 60.0, 150.0]))
    more = OverNodes("all_gather", SIXTEEN, 25, GroupShape(64, 8, 8), 25).carried(start)
    for size in (16e3, 16e5, 16e6):
        assert more.time_us(4 * size) / 63 == pytest.approx(start.time_us(size) / 15, rel=0.02)
