"""Guessed sizes put a time in doubt: kernel by kernel, in the interval, and in what is said."""

from __future__ import annotations

from stepsight.prediction.traced.jobs import INDIVIDUAL, SHARED
from stepsight.prediction.traced.predict import predict_trace, traced_step
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from stepsight.trace.sizing.unrecorded import COLLECTIVE, COUNTED, UNKNOWN
from stepsight.trace.step.job import rank_program
from tests.trace.making import Made, made_run, two_step_training


def spread(kernel: str, dims: list[list[int]] | None = None) -> float:
    made = Made()
    made.op("aten::relu", 0, 40, dims)
    made.launch(5, 5, kernel, 12, 20, grid=[640, 4, 1], block=[128, 1, 1])
    linked = made.linked()
    return kernel_of(Facts(linked), linked.launches[0], linked.launches[0].gpu[0], "compute")[0].size_spread


def shaped_training(*, shapes: bool) -> Made:
    """Three steps that the GPU bounds: one product of 4096 × 4096 × 1024 each."""
    made = Made()
    for number in range(3):
        at = 2000.0 * number
        made.step(number, at, 1900)
        made.op("aten::mm", at + 1, 20, [[4096, 1024], [1024, 4096]] if shapes else None)
        made.launch(at + 5, 8, "volta_sgemm_128x64_tn", at + 20, 1900, grid=[32, 64, 1], block=[128, 1, 1])
    return made


def test_recorded_sizes_are_sure():
    assert spread("vectorized_elementwise_kernel<4, relu>", [[640 * 512]]) == 0.0


def test_the_less_a_kernel_shows_the_wider_its_time():
    counted, unknown = (RULES.value(kind) for kind in (COUNTED, UNKNOWN))
    assert spread("vectorized_elementwise_kernel<4, relu>") == counted
    assert spread("volta_sgemm_128x64_tn") == unknown  # nothing counts what it sums over
    assert spread("some_fused_thing") == unknown
    assert counted < unknown


def test_guessed_sizes_widen_the_interval_and_show_in_the_coverage():
    with RULES.without(["opaque_kernels"]):
        sure, guessed = (
            predict_trace(made_run(shaped_training(shapes=s)), models_only=True) for s in (True, False)
        )
    assert sure.coverage.guessed_sizes == 0.0
    assert guessed.coverage.guessed_sizes == 1.0
    assert guessed.high_us / guessed.low_us > 2 * sure.high_us / sure.low_us


def test_a_kernel_without_sizes_keeps_the_time_the_trace_shows():
    kept = predict_trace(made_run(shaped_training(shapes=False)), models_only=True)
    assert kept.coverage.share_by_source["trace"] == 1.0


def test_a_replay_is_sure_of_its_times():
    replayed = predict_trace(made_run(shaped_training(shapes=False)), replay=True)
    assert replayed.coverage.guessed_sizes == 0.0


def test_a_runs_own_host_times_are_surer_than_other_workloads():
    run = made_run(two_step_training())
    own, others = (traced_step(run, overheads=whose).host_spread for whose in (INDIVIDUAL, SHARED))
    assert own < others


def test_a_collective_sized_by_its_neighbours_is_in_doubt_too():
    made = Made(world=2)
    made.op("aten::add", 0, 40)
    made.launch(5, 5, "vectorized_elementwise_kernel<4, add>", 12, 20, grid=[640, 1, 1], block=[128, 1, 1])
    made.op("nccl:all_reduce", 50, 40)
    made.launch(55, 5, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 62, 50, stream=20)
    run = made_run(made)
    ops = [t.op for t in rank_program(run, run.ranks[0], 0).ops]
    assert [op.collective.size_spread for op in ops if op.collective] == [RULES.value(COLLECTIVE)]
