"""Tensor-core GEMMs beyond the tables: tf32, and rows off 16-byte boundaries."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.gemms import off_boundaries
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel


def _times(gpu: str, *kernels: Kernel) -> list[float]:
    return KernelModels.for_gpu(load_gpu(gpu)).estimate(kernels).time_us.tolist()


def _gemm(dtype: str, m: int, n: int, k: int) -> Kernel:
    return Kernel.of("gemm", dtype, operator="mm", m=m, n=n, k=k)


@pytest.mark.parametrize(("gpu", "dtype"), [("A100-SXM4-40G", "tf32"), ("H100-SXM-80G", "bf16")])
def test_narrow_loads_take_longer_where_arithmetic_bounds_a_gemm(gpu, dtype):
    aligned, narrow = _times(gpu, _gemm(dtype, 4096, 4096, 4096), _gemm(dtype, 4096, 4095, 4096))
    assert narrow > 1.6 * aligned


def test_narrow_loads_hide_behind_slow_memory():
    aligned, narrow = _times(
        "A100-SXM4-40G", _gemm("tf32", 300_000, 16, 600), _gemm("tf32", 300_000, 15, 600)
    )
    assert narrow < 1.15 * aligned


def test_a_wider_spread_stands_for_what_no_table_shows():
    models = KernelModels.for_gpu(load_gpu("A100-SXM4-40G"))
    plain, narrow = models.estimate([_gemm("bf16", 1024, n, 1024) for n in (1024, 1023)]).spread
    assert narrow > plain


def test_rows_off_16_bytes_are_known_by_their_sizes() -> None:
    sizes = {
        "m": [4096.0, 4096.0, 50257.0, 4095.0],
        "n": [4096.0, 50257.0, 1280.0, 4096.0],
        "k": [1280.0] * 4,
    }
    dims = {key: np.array(column) for key, column in sizes.items()}
    batch = Batch.of("gemm", "fp16", dims, ["linear", "linear", "wgrad", "linear"])
    assert off_boundaries(batch).tolist() == [False, True, True, False]  # m of a forward is the samples
