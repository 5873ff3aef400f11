"""Every kernel that a workload emits on a CPU has a torch call that runs it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from stepsight.calibrate.draws import chosen_kernels, other_kernels, rehearsal_documents
from stepsight.calibrate.kernel_bench import (
    ROUND_BYTES,
    measure,
    operand_bytes,
    operand_count,
    prepare,
    rounds_of,
    tiny,
)
from stepsight.kernels.families import FAMILIES
from stepsight.program.job import Kernel
from stepsight.run.worker import Rank
from stepsight.workload.files import parse_workload

WORKLOADS = [parse_workload(d, d["name"]) for d in rehearsal_documents(2, 2, 3)]
KERNELS = chosen_kernels(WORKLOADS, "cpu", 60)
NOT_DESCRIBED = {
    "batch_norm", "batch_norm_backward", "conv", "conv_dgrad", "conv_wgrad", "pool", "sort",
}  # fmt: skip
"""Kernels of captured and traced models, which run on GPUs with models of their own."""
FUSED_ON_GPUS = {
    "cross_entropy", "cross_entropy_backward", "layer_norm_weights", "masked_fill", "masked_fill_backward",
    "rms_norm", "rms_norm_backward", "rotary", "rotary_backward", "sort_pass",
}  # fmt: skip
"""Kernels of fused libraries, which a CPU runs as several element-wise ones, and passes of a GPU's sorts."""
SMALL = [k for k in KERNELS if operand_bytes(k) < 1e6]


def test_every_kernel_of_the_workloads_can_be_run() -> None:
    for kernel in SMALL:
        call = prepare(kernel, "cpu")
        assert call is not None, kernel
        call.call()


@pytest.mark.parametrize("name", ["linear", "dgrad", "wgrad", "bmm"])
def test_a_product_has_the_shape_its_kernel_states(name: str) -> None:
    call = prepare(Kernel.of("gemm", operator=name, batch=1, m=3, n=5, k=7), "cpu")
    assert call is not None
    assert tuple(call.call().shape)[-2:] == (3, 5)


def test_an_element_wise_kernel_reads_as_many_tensors_as_its_bytes_say() -> None:
    def reads(count: int) -> int:
        return operand_count(Kernel.of("elementwise", elements=10, read_bytes=40 * count, write_bytes=40))

    assert [reads(n) for n in (1, 2, 3)] == [1, 2, 3]


def test_what_a_producer_has_just_written_is_fresh_and_a_first_pass_over_state_is_not() -> None:
    relu = prepare(
        Kernel.of("elementwise", operator="relu", elements=8, read_bytes=32, write_bytes=32), "cpu"
    )
    update = prepare(
        Kernel.of("elementwise", operator="lerp", elements=8, read_bytes=64, write_bytes=32), "cpu"
    )
    assert relu is not None and len(relu.fresh) == 1
    assert update is not None and update.fresh == ()


def test_every_described_family_but_lookups_has_a_benchmark() -> None:
    drawn = {k.family for k in [*KERNELS, *other_kernels()]}
    assert set(FAMILIES) - drawn == (
        {"embedding", "embedding_backward", "other"} | FUSED_ON_GPUS | NOT_DESCRIBED
    )


@pytest.mark.parametrize("family", sorted({k.family for k in other_kernels()}))
def test_other_kernels_can_be_run(family: str) -> None:
    smallest = min((k for k in other_kernels() if k.family == family), key=operand_bytes)
    call = prepare(smallest, "cpu")
    assert call is not None
    call.call()


def test_a_tiny_twin_runs_the_same_code_on_next_to_nothing() -> None:
    for kernel in [*KERNELS, *other_kernels()]:
        twin = tiny(kernel)
        assert (twin.family, twin.operator, twin.dtype) == (kernel.family, kernel.operator, kernel.dtype)
        assert operand_bytes(twin) <= max(operand_bytes(kernel), 1e4) and operand_bytes(twin) < 1e5
        call = prepare(twin, "cpu")
        assert call is not None
        call.call()
        if kernel.family == "elementwise":
            assert operand_count(twin) == operand_count(kernel)


def test_a_family_without_a_call_is_left_to_other_benchmarks() -> None:
    assert prepare(Kernel("embedding"), "cpu") is None


def test_rounds_mix_kernels_and_hold_them_all_once() -> None:
    rounds = list(rounds_of(KERNELS, seed=1))
    assert sorted(map(str, KERNELS)) == sorted(str(k) for r in rounds for k in r)
    assert all(sum(operand_bytes(k) for k in r[:-1]) < ROUND_BYTES for r in rounds)


def test_every_repeat_of_every_kernel_is_timed() -> None:
    times = measure(Rank(0, 1, "cpu", (0,)), SMALL[:5], repeats=3, seed=0)
    assert [len(t) for t in times] == [3] * 5
    assert all(t > 0 for row in times for t in row)
