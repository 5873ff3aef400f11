"""Price lists put together from nearer and farther curves."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.collectives.candidates import CurveCandidate
from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import MeasuredSystem, load_catalogue
from stepsight.collectives.pricing import price
from stepsight.collectives.roofline import GroupShape
from stepsight.estimate import Source

from .platforms import platform

EIGHT = GroupShape(8, 1, 8)


def system(name: str, gpu: str, curve: Curve, **fields) -> MeasuredSystem:
    return MeasuredSystem(name, (gpu,), "nvswitch", 300, "", 0, {("all_gather", EIGHT): curve}, **fields)


def priced(*systems: MeasuredSystem):
    return price("all_gather", EIGHT, platform(), systems, load_catalogue().rank_transfer)


def line(low: int, high: int, scale: float = 1.0) -> Curve:
    sizes = 2.0 ** np.arange(low, high + 1)
    return Curve.fit(sizes, scale * (10 + sizes / 2e5))


def test_the_nearest_curve_answers_where_it_was_measured():
    near, far = system("near", "A100", line(12, 24)), system("far", "H100", line(4, 34, 3.0))
    answer = priced(far, near).estimate(np.array([2.0**20]))[0]
    assert answer.time_us == pytest.approx(float(line(12, 24).time_us(2.0**20)))
    assert answer.source is Source.MEASURED


def test_a_farther_curve_fills_in_beyond_and_says_so():
    near, far = system("near", "A100", line(20, 24)), system("far", "H100", line(4, 34, 0.5))
    answer = priced(near, far).estimate(np.array([2.0**8]))[0]
    assert answer.source is Source.TRANSFERRED and "far" in answer.note


def test_filling_in_never_moves_a_nearer_curves_own_times():
    near = system("near", "A100", line(12, 16, 5.0))
    alone, filled = priced(near), priced(near, system("far", "H100", line(4, 34, 0.1)))
    sizes = 2.0 ** np.arange(12, 17)
    np.testing.assert_allclose(filled.time_us(sizes), alone.time_us(sizes))


def test_above_its_range_a_slow_machine_stays_slow():
    near, far = system("near", "A100", line(12, 20, 10.0)), system("far", "H100", line(4, 34))
    alone, filled = priced(near), priced(near, far)
    assert filled.time_us(2.0**33) == pytest.approx(float(alone.time_us(2.0**33)), rel=0.05)


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 3.0, 100.0])
def test_a_price_list_of_several_curves_stays_monotone(scale):
    near, far = system("near", "A100", line(16, 20)), system("far", "H100", line(4, 34, scale))
    times = priced(near, far).time_us(2.0 ** np.arange(0, 36, 0.25))
    assert (np.diff(times) >= -1e-9 * times[1:]).all()


def test_a_pinned_algorithm_gives_way_to_a_free_one():
    key = ("all_gather", EIGHT)
    pinned = system("pinned", "A100", line(12, 24, 2.0), forced=frozenset([key]))
    answer = priced(pinned, system("free", "A100", line(12, 24))).estimate(np.array([2.0**20]))[0]
    assert answer.note == ""


def test_candidates_carry_what_an_answer_needs():
    pieces = priced(system("near", "A100", line(12, 24))).pieces
    assert all(isinstance(piece, CurveCandidate) and piece.curve is not None for piece in pieces)


OVER_TWO = GroupShape(16, 2, 8)


def over_nodes(name: str, kind: str, curve: Curve, nic: str = "infiniband", nodes: int = 2) -> MeasuredSystem:
    shape = GroupShape(8 * nodes, nodes, 8)
    return MeasuredSystem(name, ("A100",), "nvswitch", 300, nic, 25, {(kind, shape): curve})


def priced_over_nodes(*systems: MeasuredSystem):
    return price("all_gather", OVER_TWO, platform(nodes=2), systems, load_catalogue().rank_transfer)


def test_a_tree_does_not_time_the_small_messages_of_a_ring():
    tree = over_nodes("tree", "all_reduce", line(4, 34))
    ring = over_nodes("ring", "all_gather", line(4, 34, 3.0), nodes=8)
    assert "ring" in priced_over_nodes(tree, ring).estimate(np.array([2.0**12]))[0].note


def test_gathers_and_scatters_are_one_ring():
    scatter = over_nodes("scatter", "reduce_scatter", line(4, 34))
    gather = over_nodes("gather", "all_gather", line(4, 34, 3.0), nodes=8)
    assert "scatter" in priced_over_nodes(scatter, gather).estimate(np.array([2.0**12]))[0].note


def test_a_network_of_the_same_transport_answers_first():
    plugin = over_nodes("plugin", "all_gather", line(4, 34), nic="efa")
    verbs = over_nodes("verbs", "all_gather", line(4, 34), nic="roce", nodes=4)
    assert "verbs" in priced_over_nodes(plugin, verbs).estimate(np.array([2.0**20]))[0].note
