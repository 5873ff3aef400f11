"""Streaming kernels: bound by memory, or by the instructions that compute an index for every element."""

import itertools

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.kernels.stream_costs import STREAMS, VARIANTS, meet
from stepsight.program.job import Kernel

N = 64 * 2**20


def time_us(gpu: str, family: str, dtype: str = "bf16", name: str = "", **sizes: float) -> float:
    return (
        KernelModels.for_gpu(load_gpu(gpu))
        .estimate([Kernel.of(family, dtype, operator=name, **sizes)])[0]
        .time_us
    )


@pytest.mark.parametrize("gpu", ["A100-SXM4-80G", "H100", "B200"])
def test_an_operand_that_is_broadcast_makes_the_kernel_wait_for_instructions(gpu: str) -> None:
    sizes = {"elements": N, "read_bytes": 2 * N, "write_bytes": 2 * N}
    plain, indexed = (time_us(gpu, "elementwise", name="mul", indexed=i, **sizes) for i in (0, 1))
    spec = load_gpu(gpu)
    assert indexed > 1.15 * plain
    assert indexed == pytest.approx(N / (1.5 * spec.sms * spec.clock_mhz), rel=0.25)


def test_bounds_meet_without_a_corner() -> None:
    a = np.array([1.0, 1.0, 0.0])
    b = np.array([0.0, 1.0, 0.0])
    assert meet(a, b) == pytest.approx([1.0, 2**0.25, 0.0])


@pytest.mark.parametrize("gpu", ["V100-SXM2-32G", "A100-SXM4-80G", "H100", "B200", "MI300X"])
@pytest.mark.parametrize("family", [f for f in STREAMS if f not in ("copy_h2d", "copy_d2h")])
def test_more_takes_longer_and_nothing_is_free(gpu: str, family: str) -> None:
    times = []
    for scale in (1, 8, 64, 512):
        kernel = Kernel.of(
            family, "bf16", rows=64 * scale, cols=1024, table_rows=50_000, elements=65536 * scale, inputs=2,
            bytes=131072 * scale, read_bytes=131072 * scale, write_bytes=131072 * scale, tensors=1,
        )  # fmt: skip
        times.append(KernelModels.for_gpu(load_gpu(gpu)).estimate([kernel])[0].time_us)
    assert times[0] > 1.0
    assert all(later >= 0.98 * sooner for sooner, later in itertools.pairwise(times))


def test_every_variant_belongs_to_a_family() -> None:
    assert {family for family, _ in VARIANTS} <= set(STREAMS)


@pytest.mark.parametrize(("dtype", "slower"), [("fp16", True), ("fp32", False)])
def test_batch_norms_by_channel_wait_for_instructions_in_half_precision(dtype: str, slower: bool) -> None:
    by_channel, by_pixel = (
        time_us("A100-SXM4-80G", "batch_norm", dtype, name, rows=64, cols=10_000_000)
        for name in ("by_channel", "")
    )
    assert (by_channel > 1.5 * by_pixel) == slower
