"""Where steps begin, and the step time on the GPU's own clock."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.trace.run import measured_step_us
from stepsight.trace.steps import find_steps, gpu_periods
from tests.trace.making import Made, made_run, two_step_training


def _iterations(count: int, period: float, mark: str | None = None) -> Made:
    made = Made()
    for i in range(count):
        at = i * period
        if mark:
            made.annotation(f"{mark} {i}", at, period * 0.9)
        for k, name in enumerate(("a", "b", "c")):
            made.op(f"aten::{name}", at + 10 * k, 8)
            made.launch(at + 10 * k + 1, 2, f"kernel_{name}", at + 10 * k + 6, 5)
    return made


def test_profiler_steps_come_first():
    steps = find_steps(two_step_training().linked())
    assert [s.name for s in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert steps[0].how == "ProfilerStep"


def test_an_empty_last_profiler_step_is_dropped():
    made = two_step_training()
    made.step(9, 9000, 0.5)
    assert len(find_steps(made.linked())) == 3


def test_iteration_markers_serve_where_there_are_no_profiler_steps():
    steps = find_steps(_iterations(4, 100.0, "train iteration").linked())
    assert len(steps) == 4
    assert steps[0].how == "iteration marker"


def test_repeating_kernels_serve_where_there_are_no_markers():
    steps = find_steps(_iterations(5, 100.0).linked())
    assert len(steps) == 5
    assert steps[0].how == "repetition of kernels"


def test_a_trace_without_repetition_is_one_step():
    made = Made()
    made.op("aten::a", 0, 10)
    made.launch(1, 2, "k", 6, 5)
    assert [s.name for s in find_steps(made.linked())] == ["whole trace"]


def test_the_period_is_the_gpus_and_not_the_hosts():
    linked = two_step_training(host_us=50, kernel_us=200).linked()
    assert np.allclose(gpu_periods(linked, 3), 600)


def test_a_gap_that_allocation_stretches_does_not_count():
    made = _iterations(4, 100.0, "step")
    made.call("cudaMalloc", 145, 50)
    periods = gpu_periods(made.linked(), 4)
    assert np.isnan(periods[1]) and np.allclose(periods[[0, 2]], 100)


def test_one_step_of_many_ranks_lasts_from_the_last_start_to_the_last_end():
    traces = []
    for rank, start in ((0, 0.0), (1, 30.0)):
        made = Made(rank, 2)
        made.step(1, start, 100)
        made.op("aten::a", start + 1, 10)
        made.launch(start + 2, 2, "k", start + 10, 80 + 50 * rank)
        traces.append(made)
    assert measured_step_us(made_run(*traces)) == pytest.approx(170 - 30)
