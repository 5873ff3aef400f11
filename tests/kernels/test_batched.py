"""Batched half-precision products: bytes, padded tiles, whole waves."""

import numpy as np
import pytest

from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.kernels.tiles import BATCHED, batched_us, padded
from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel

A100, H100, L40S = (load_gpu(name) for name in ("A100-SXM4-80G", "H100-SXM-80G", "L40S"))


def products(name: str = "bmm", **sizes: float) -> Batch:
    return Batch.of("gemm", "fp16", {key: np.array([value]) for key, value in sizes.items()}, name)


def test_a_narrow_output_is_padded_to_a_small_tile_and_a_wide_one_to_whole_large_ones() -> None:
    assert padded(np.array([8.0, 33.0, 64.0, 65.0, 128.0, 144.0])).tolist() == [32, 64, 64, 128, 128, 256]


def test_a_product_bound_by_memory_takes_its_bytes() -> None:
    batch = products(batch=64, m=4096, n=64, k=4096)
    memory = batch.bytes[0] / (A100.memory_gbps * 1e3 * BATCHED.memory)
    assert batched_us(batch, A100)[0] == pytest.approx(memory + BATCHED.start_us, rel=0.05)


def test_one_column_more_than_a_tile_costs_a_second_tile() -> None:
    fits, over = (batched_us(products(batch=64, m=4096, n=n, k=4096), A100)[0] for n in (256.0, 264.0))
    assert over / fits > 1.3


def test_more_work_never_takes_less_time() -> None:
    sizes = np.sort(np.floor(np.exp(np.random.default_rng(0).uniform(0, 8, 200))))
    for key in ("batch", "m", "n", "k"):
        dims = {other: np.full(200, 96.0) for other in ("batch", "m", "n", "k")} | {key: sizes}
        times = batched_us(Batch.of("gemm", "fp16", dims, "bmm"), A100)
        assert (np.diff(times) >= -1e-6 * times[1:]).all(), key


def test_a_measured_chip_corrects_first_principles_and_another_says_whose_constants_it_takes() -> None:
    batch = products(batch=128, m=2048, n=64, k=2048)
    assert KernelModels.for_gpu(A100).estimate_batch(batch).source[0] == Source.LEARNED
    assert KernelModels.for_gpu(H100).estimate_batch(batch).source[0] == Source.LEARNED
    other = KernelModels.for_gpu(L40S).estimate_batch(batch)
    assert other.source[0] == Source.TRANSFERRED and "A100" in other.notes[0]


def test_a_batch_of_one_is_a_single_product() -> None:
    one, single = products(batch=1, m=2048, n=1024, k=2048), products("", batch=1, m=2048, n=1024, k=2048)
    models = KernelModels.for_gpu(A100)
    assert models.estimate_batch(one).time_us[0] == models.estimate_batch(single).time_us[0]


def test_a_matrix_that_serves_a_whole_batch_is_read_once() -> None:
    sizes = {"batch": 229_376, "m": 7, "n": 192, "k": 64}
    own, shared = (Kernel.of("gemm", "fp16", operator="bmm", **sizes, **more) for more in ({}, {"shared": 2}))
    models = KernelModels.for_gpu(load_gpu("RTX-4090"))
    times = models.estimate([own, shared]).time_us
    assert times[1] < 0.7 * times[0]
    rows, weight = (
        TensorFact((512, 7, 64), "fp16", (448, 64, 1)),
        TensorFact((512, 64, 192), "fp16", (0, 1, 64)),
    )
    call = AtenCall("bmm", (rows, weight), (TensorFact((512, 7, 192), "fp16", (1344, 192, 1)),))
    assert lower(call, Precision()).kernels[0].dim("shared") == 2
