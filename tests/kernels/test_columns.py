"""Kernels as columns: grouping, and what a size is when nobody states it."""

import numpy as np

from stepsight.kernels.columns import Batch, batches
from stepsight.program.job import Kernel


def test_kernels_are_grouped_by_family_and_dtype_with_their_positions() -> None:
    kernels = [
        Kernel.of("gemm", "fp32", m=1, n=2, k=3),
        Kernel.of("fill", bytes=5),
        Kernel.of("gemm", "bf16", m=4, n=5, k=6),
        Kernel.of("gemm", "fp32", m=7, n=8, k=9),
    ]
    found = {(b.family, b.dtype): b for b in batches(kernels)}
    assert found["gemm", "fp32"].positions.tolist() == [0, 3]
    assert found["gemm", "fp32"].dims["k"].tolist() == [3, 9]
    assert found["gemm", "bf16"].dims["m"].tolist() == [4]


def test_sizes_stated_in_different_orders_find_their_columns() -> None:
    first, second = Kernel.of("gemm", m=1, n=2, k=3), Kernel.of("gemm", k=30, m=10, n=20, batch=4)
    (batch,) = batches([first, second])
    assert batch.dims["m"].tolist() == [1, 10]
    assert batch.dims["batch"].tolist() == [1, 4]


def test_unstated_sizes_take_their_neutral_value() -> None:
    batch = Batch.of("attention", "bf16", {"batch": np.array([2.0]), "heads": np.array([8.0]),
                                           "q": np.array([128.0]), "head_dim": np.array([64.0])})  # fmt: skip
    assert batch.dims["kv"].tolist() == [128]
    assert batch.dims["kv_heads"].tolist() == [8]
    assert batch.dims["causal"].tolist() == [0]


def test_elements_alone_imply_the_bytes_of_an_elementwise_kernel() -> None:
    batch = Batch.of("elementwise", "fp16", {"elements": np.array([100.0])})
    assert batch.bytes.tolist() == [400]


def test_sizes_that_are_no_numbers_do_not_spread() -> None:
    batch = Batch.of("gemm", "fp32", {"m": np.array([np.nan]), "n": np.array([8.0]), "k": np.array([np.inf])})
    assert np.isfinite(batch.flops).all()
