"""Ranks whose clocks differ are set by the ends of the collectives that they leave together."""

from __future__ import annotations

import pytest

from stepsight.prediction.traced.predict import predict_trace
from stepsight.trace.run import measured_step_us
from tests.trace.making import Made, made_run


def _rank(rank: int, *, ahead_us: float = 0.0, comes_us: float = 0.0, group_us: float = 0.0) -> Made:
    """A step of a kernel and four all_reduces, into which the rank comes some time late; ``ahead_us`` is what
    its clock shows too much. Another group's collectives end ``group_us`` apart, a little more each time."""
    made = Made(rank=rank, world=2)
    made.step(0, 1000.0 + ahead_us, 5000.0)
    for i in range(4):
        end = 2000.0 + 1000.0 * i + group_us * i
        begin = end - 500.0 + comes_us
        made.op("aten::relu", begin - 400 + ahead_us, 40, [[256, 64]])
        made.launch(begin - 390 + ahead_us, 5, "vectorized_elementwise_kernel<4, relu>",
                    begin - 380 + ahead_us, 200, grid=[32, 1, 1], block=[128, 1, 1])  # fmt: skip
        made.op("nccl:all_reduce", begin - 30 + ahead_us, 20, [[65536]])
        made.launch(begin - 25 + ahead_us, 5, "ncclKernel_AllReduce_RING_LL_Sum_float", begin + ahead_us,
                    end - begin, stream=20)  # fmt: skip
    return made


def test_a_clock_that_runs_ahead_is_told_by_the_ends_of_collectives():
    run = made_run(_rank(0), _rank(1, ahead_us=7000.0))
    assert run.ranks[1].ahead_us == pytest.approx(7000.0)
    assert "the ranks' clocks are 7.0 ms apart: set by the ends of their collectives" in run.warnings


def test_a_step_takes_as_long_whatever_the_clocks_show():
    even, apart = (made_run(_rank(0), _rank(1, ahead_us=us, comes_us=200.0)) for us in (0.0, 90_000.0))
    assert measured_step_us(apart) == pytest.approx(measured_step_us(even))
    answers = [predict_trace(run, replay=True).step_time_us for run in (even, apart)]
    assert answers[0] == pytest.approx(answers[1], rel=1e-6)


def test_a_rank_that_comes_late_has_no_other_clock():
    run = made_run(_rank(0), _rank(1, comes_us=300.0))
    assert [r.ahead_us for r in run.ranks] == [0.0, 0.0]
    assert not any("clocks" in w for w in run.warnings)


def test_collectives_that_do_not_end_together_say_nothing_of_clocks():
    run = made_run(_rank(0), _rank(1, ahead_us=7000.0, group_us=150.0))
    assert [r.ahead_us for r in run.ranks] == [0.0, 0.0]
