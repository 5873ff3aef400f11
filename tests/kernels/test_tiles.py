"""fp32 products by whole tiles in whole waves."""

from dataclasses import replace

import numpy as np
import pytest

from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.machine import Machine
from stepsight.kernels.models import KernelModels
from stepsight.kernels.tiles import SHARE, tiled_us

A100 = Machine.of(load_gpu("A100-PCIE-40G"), "fp32")
H100 = Machine.of(load_gpu("H100-SXM-80G"), "fp32")


def products(batch: float = 256, m: float = 2048, n: float = 128, k: float = 2048) -> Batch:
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    return Batch.of("gemm", "fp32", {key: np.array([float(value)]) for key, value in sizes.items()}, "bmm")


def test_a_large_product_runs_at_its_share_of_peak() -> None:
    batch = products(n=2048)
    assert tiled_us(batch, A100)[0] == pytest.approx(batch.flops[0] / (A100.tflops * 1e6 * SHARE), rel=0.03)


def test_with_one_large_tile_half_of_it_takes_as_long_as_all_of_it() -> None:
    half, whole = tiled_us(products(n=64), A100)[0], tiled_us(products(n=128), A100)[0]
    assert half == pytest.approx(whole, rel=0.03)


def test_with_several_tiles_a_narrow_product_takes_a_narrow_one() -> None:
    half, whole = tiled_us(products(n=64), H100)[0], tiled_us(products(n=128), H100)[0]
    assert 0.5 < half / whole < 0.65


def test_fewer_multiprocessors_never_help() -> None:
    batch = products(batch=3, m=300, n=300, k=300)
    small = replace(A100, sms=54, tflops=A100.tflops / 2)
    assert tiled_us(batch, small)[0] >= tiled_us(batch, A100)[0]


def test_a_gpu_without_a_table_of_batched_products_is_answered_by_its_tiles() -> None:
    answer = KernelModels.for_gpu(load_gpu("L4")).estimate_batch(products())
    assert answer.source[0] == Source.TRANSFERRED
    assert "tiles" in answer.notes[0]
