"""Gradients of lookups: runs of equal indices are added up in turn."""

import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.program.aten.call import MOST_FREQUENT, AtenCall, Precision, TensorFact
from stepsight.program.aten.movement import embedding_backward
from stepsight.program.job import Kernel


def scatter_us(run: float, gpu: str = "H100-SXM") -> float:
    kernel = Kernel.of("scatter", "fp32", rows=4e6, cols=16, table_rows=32, run=run)
    return float(KernelModels.for_gpu(load_gpu(gpu)).estimate([kernel]).time_us[0])


def test_a_long_run_takes_a_load_after_the_other() -> None:
    parts = 2e6 / 10
    assert scatter_us(2e6) - scatter_us(0) == pytest.approx(parts * 270 / 1830, rel=0.01)
    assert scatter_us(1e5) < scatter_us(1e6)


def lowered(precision: Precision, indices: int) -> list[Kernel]:
    gradient = TensorFact((indices, 16), "fp32", (16, 1))
    picked = TensorFact((indices,), "int64", (1,))
    arguments = {"grad_output": gradient, "indices": picked, "num_weights": 32, MOST_FREQUENT: indices // 2}
    call = AtenCall("embedding_dense_backward", (gradient, picked), (gradient,), arguments)
    return embedding_backward(call, precision)


def test_newer_versions_add_atomically_and_short_lists_are_not_sorted() -> None:
    assert lowered(Precision(sums_in_turn=True), 1 << 20)[-1].dim("run") == 1 << 19
    assert "run" not in dict(lowered(Precision(), 1 << 20)[-1].dims)
    assert "run" not in dict(lowered(Precision(sums_in_turn=True), 1024)[-1].dims)
