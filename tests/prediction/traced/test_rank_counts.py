"""What a traced step takes on other numbers of ranks: only its collectives change."""

from __future__ import annotations

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.traced.predict import TracedStep, traced_step
from stepsight.prediction.traced.whatif import changed
from stepsight.trace.run import TraceRun
from tests.trace.making import Made, made_run

MACHINE = load_platform("8xA100-SXM4-40G")


def _step(*, all_reduce_us: float, models_only: bool = False) -> TracedStep:
    return traced_step(_training(all_reduce_us=all_reduce_us), models_only=models_only, machine=MACHINE)


def _training(*, all_reduce_us: float, world: int = 8) -> TraceRun:
    """One rank of many: steps of a backward and an all_reduce of 67 MB, for which the host waits."""
    made, at = Made(world=world, device="NVIDIA A100-SXM4-40GB"), 1000.0
    for number in range(3):
        length = 700.0 + all_reduce_us
        made.step(number, at, length)
        made.op("MmBackward0", at + 5, 40, [[512, 512], [512, 512]])
        made.launch(at + 10, 5, f"volta_sgemm_128x64_tn_{number}", at + 20, 500, grid=[4, 8, 1])
        made.op("nccl:all_reduce", at + 500, 15, [[16 * 2**20]])
        made.launch(at + 505, 5, "ncclKernel_AllReduce_RING_LL_Sum_float", at + 530, all_reduce_us, stream=20)
        made.call("cudaDeviceSynchronize", at + 540, length - 545)
        at += length
    return made_run(made)


@pytest.mark.parametrize("models_only", [False, True])
def test_its_own_number_of_ranks_is_the_base(models_only: bool):
    step = _step(all_reduce_us=4000.0, models_only=models_only)
    again = changed(step, ["ranks=8"]).predicted().step_time_us
    assert again == pytest.approx(step.predicted().step_time_us, rel=1e-9)


@pytest.mark.parametrize("models_only", [False, True])
def test_more_ranks_never_take_less(models_only: bool):
    step = _step(all_reduce_us=4000.0, models_only=models_only)
    times = [changed(step, [f"ranks={n}"]).predicted().step_time_us for n in (1, 2, 8, 16, 64)]
    assert times == sorted(times)


def test_a_wait_for_peers_is_no_gain_of_another_number_of_ranks():
    step = _step(all_reduce_us=50_000.0)  # its links take a fiftieth of that
    there = changed(step, ["ranks=16"]).predicted().step_time_us
    assert there > step.predicted().step_time_us


def test_ranks_beyond_the_machine_take_more_nodes_of_its_kind():
    step = changed(_step(all_reduce_us=4000.0), ["ranks=16"])
    assert (step.platform.spec.nodes, step.platform.spec.ranks) == (2, 16)
    assert "16 ranks: 2 nodes of 8 GPUs" in step.notes
