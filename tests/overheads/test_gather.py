"""Gathering T1–T5 from samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.overheads.gather import Gathered, HostSample, typical
from stepsight.program.job import HostTimes


def _sample(name: str, before: str = "", launches: int = 1, place: str = "1/1", **times: float) -> HostSample:
    parts = {"t1": 5.0, "t2": 20.0, "t3": 4.0, "t4": 9.0, "t5": 0.0, **times}
    return HostSample(name, before, launches, HostTimes(**parts), 1, "cudaLaunchKernel", place)


def test_an_op_in_its_place_answers_with_that_places_mean():
    gathered = Gathered()
    gathered.add([_sample("a", t1=500), _sample("a", before="b", t1=2), _sample("a", before="b", t1=4)])
    assert gathered.individual("a", "b", 1, "1/1").t1 == 3
    assert gathered.individual("a", "", 1, "1/1").t1 == 500


def test_an_op_out_of_place_answers_with_its_own_mean():
    gathered = Gathered()
    gathered.add([_sample("a", before="b", t2=10), _sample("a", before="c", t2=30)])
    assert gathered.individual("a", "elsewhere", 1).t2 == 20


def test_the_number_of_launches_tells_two_uses_apart():
    gathered = Gathered()
    gathered.add([_sample("aten::to", launches=0, t5=3), _sample("aten::to", launches=1)])
    assert gathered.individual("aten::to", "", 0).t5 == 3


def test_an_op_never_seen_has_no_answer():
    assert Gathered().individual("a", "", 1) is None


def test_the_profilers_cost_is_taken_out_and_kept():
    gathered = Gathered()
    gathered.add([_sample("aten::mm", t2=20, t4=10)] * 5)
    stat = gathered.overheads("host", "made").ops["aten::mm"].t4
    assert stat.mean == pytest.approx(6)
    assert stat.mean + stat.profiler_us == pytest.approx(10)


def test_outliers_are_trimmed_and_the_spread_kept():
    gathered = Gathered()
    gathered.add([_sample("aten::mm", t2=float(t)) for t in (20, 21, 22, 23, 24, 25, 9000)])
    stat = gathered.overheads("host", "made").ops["aten::mm"].t2
    assert stat.count == 6
    assert stat.std > 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_trimming_keeps_something_and_invents_nothing(values):
    kept = np.array(values)[typical(np.array(values)) > 0]
    assert 0 < len(kept) <= len(values)
    assert set(kept) <= set(values)
