"""Micro batches that repeat are continued by their period, and the step is that of the whole walk."""

import numpy as np
import pytest

from stepsight import load_platform, predict
from stepsight.errors import StepsightError
from stepsight.prediction.answer import predict_job
from stepsight.program.job import Period
from stepsight.simulate.periods import continued, evenly
from stepsight.simulate.timeline import simulate
from stepsight.workload.files import parse_workload


def workload(*, batch, layers=4, hidden=512, recompute=False, **parallel):
    return parse_workload(
        {
            "kind": "transformer", "family": "gpt2", "layers": layers, "hidden": hidden, "heads": 8,
            "vocab": 2048, "sequence": 256, "batch_per_rank": batch,
            "training": {"precision": "bf16", "recompute": recompute, "framework": "eager"},
            "parallel": {"micro_batch": 1, **parallel},
        },
        "test",
    )  # fmt: skip


SHAPES = [
    {"batch": 24, "data": 8},  # gradient accumulation, the host runs ahead or behind
    {"batch": 24, "data": 8, "hidden": 2048, "layers": 2},  # the device is behind its host
    {"batch": 20, "data": 2, "pipeline": 4},
    {"batch": 20, "tensor": 2, "pipeline": 4, "recompute": True},
    {"batch": 33, "data": 2, "tensor": 2, "pipeline": 2, "hidden": 2048},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_step_is_that_of_the_whole_walk(shape):
    platform = load_platform("8xA100-SXM4-80G")
    described = workload(**shape)
    whole, short = (predict_job(described.job("cuda", blocks), platform) for blocks in (None, 3))
    assert not short.timeline.priced.job.whole
    assert short.step_time_us == pytest.approx(whole.step_time_us, rel=1e-9)
    assert short.naive_us == pytest.approx(whole.naive_us, rel=1e-9)
    near = 2e-3 * whole.step_time_us  # a wait that falls between two blocks
    assert short.breakdown_us == pytest.approx(dict(whole.breakdown_us), rel=1e-4, abs=near)
    assert short.coverage.share_by_source == pytest.approx(dict(whole.coverage.share_by_source))
    for mine, theirs in zip(short.ranks, whole.ranks, strict=True):
        for name in ("host_us", "gpu_active_us", "exposed_communication_us", "idle_us", "rank_wait_us"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-4, abs=near), name
    assert short.low_us == pytest.approx(whole.low_us, rel=1e-3)


def test_a_timeline_says_what_it_leaves_out():
    short = predict(workload(batch=64, data=2, pipeline=4), "8xA100-SXM4-80G")
    assert any("leaves out" in note for note in short.notes)


def test_too_few_blocks_are_seen_to_be_too_few():
    # The last stage's head makes it the slowest; its queue fills up one micro batch at a time.
    platform = load_platform("8xA100-SXM4-80G")
    described = workload(batch=64, pipeline=8, layers=8)
    timeline = simulate(described.job("cuda", 3), platform)
    assert not timeline.priced.job.whole
    assert timeline.even in (True, False)
    exact = simulate(described.job(), platform).step_us
    assert not timeline.even or timeline.step_us == pytest.approx(exact, rel=1e-9)


def states(*rows):
    """One lane, one rank: a row is a boundary, a column a clock."""
    return [[np.array(row, dtype=float)[:, None, None] for row in rows]]


def test_clocks_that_advance_together_are_even():
    assert evenly(states([0, 5], [10, 15], [20, 25])).all()


def test_a_clock_that_speeds_up_is_not_even():
    assert not evenly(states([0, 5], [10, 15], [21, 26])).all()


def test_a_host_far_ahead_of_its_device_is_even():
    # The host ends block three at 6, before the device even began it at 40.
    assert evenly(states([2, 20], [4, 40], [6, 60])).all()


def test_a_host_that_the_device_may_yet_hold_up_is_not_even():
    assert not evenly(states([2, 1], [4, 5], [6, 9])).all()


def test_a_clock_that_nothing_moves_holds_nobody_up():
    assert evenly(states([10, 3], [20, 3], [30, 3])).all()
    assert not evenly(states([10, 300], [20, 300], [30, 300])).all()


def test_a_period_lists_three_blocks():
    with pytest.raises(StepsightError, match="three blocks"):
        Period((0, 10, 20), 5)


def test_long_and_short_blocks_take_turns() -> None:
    [seen] = states([0, 5], [10, 15], [14, 19], [24, 29], [28, 33])
    assert evenly([seen]).all()
    assert continued(seen, 4)[:, 0, 0].tolist() == [56, 61]
    assert continued(seen, 3)[:, 0, 0].tolist() == [52, 57]
