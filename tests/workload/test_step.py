"""What a training loop does around the model."""

from __future__ import annotations

from pathlib import Path

from stepsight import load_platform, load_workload, predict
from stepsight.program.job import COMPUTE, HOST, Wait

EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm.toml"


def test_reading_the_loss_makes_the_host_wait_for_the_forward_pass():
    ops = load_workload(EXAMPLE, ["training.read_loss=true"]).job().programs[0].ops
    item = next(op for op in ops if op.name == "aten::item")
    assert item.blocks_host
    assert item.phase == "forward"


def test_a_step_that_reads_the_loss_is_never_shorter():
    platform = load_platform("4xV100-SXM2")
    plain = predict(load_workload(EXAMPLE), platform)
    reading = predict(load_workload(EXAMPLE, ["training.read_loss=true"]), platform)
    assert reading.step_time_us >= plain.step_time_us


def test_a_loop_that_times_its_steps_waits_for_the_device_at_their_end():
    ops = load_workload(EXAMPLE, ["training.synchronize=true"]).job().programs[0].ops
    assert ops[-1].waits == (Wait(HOST, COMPUTE),)
    platform = load_platform("4xV100-SXM2")
    plain = predict(load_workload(EXAMPLE), platform)
    assert (
        predict(load_workload(EXAMPLE, ["training.synchronize=true"]), platform).step_time_us
        >= plain.step_time_us
    )
    assert load_workload(EXAMPLE, ["training.synchronize=true"]).job("cpu").programs[0].ops[-1].waits == ()
