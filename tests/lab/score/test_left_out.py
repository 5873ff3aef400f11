"""Leaving out: what is scored took no part in what scores it."""

from pathlib import Path

import numpy as np
import pytest

from lab.fit.kernels.learn import fingerprint
from lab.fit.kernels.sources import Measured
from lab.score.kernels.judged import Judged, judge
from lab.score.kernels.left_out import _large, gpu_scores, is_fitted_table, source_scores
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels


def table(variant: str = "linear", gpu: str = "V100-PCIE-32G") -> Measured:
    sizes = np.array([64.0, 512.0, 2048.0, 4096.0])
    batch = Batch.of("gemm", "fp32", {"batch": np.ones(4), "m": sizes, "n": sizes, "k": sizes}, variant)
    time_us = np.array([70.0, 80.0, 1500.0, 11_000.0])
    return Measured(gpu, batch, variant, time_us, None, True, "made up", np.zeros(4, dtype=bool))


def test_large_rows_of_linear_layers_and_any_large_size_of_batched_products() -> None:
    assert _large(table("linear")).tolist() == [False, False, False, True]
    assert _large(table("bmm")).tolist() == [False, False, True, True]


def test_other_rows_are_not_taken_for_the_fitted_table() -> None:
    assert not is_fitted_table(table())


def test_a_fingerprint_does_not_hang_on_the_order() -> None:
    part = table()
    order = np.array([3, 1, 0, 2])
    shuffled = Measured(
        part.gpu, part.batch.take(order), "linear", part.time_us[order], None, True, "", order > 9
    )
    assert fingerprint([part]) == fingerprint([shuffled])


def test_a_gpu_left_out_is_told_by_strangers() -> None:
    own, together = gpu_scores([table()], "gemm")
    assert own.rows == together.rows == 4
    assert "GPU left out" in own.name and "90 % intervals hold" in own.note
    assert own.kind == "GPU left out: gemm fp32 linear" and own.name.startswith(f"{own.kind} ")


def test_rows_at_the_launch_floor_are_not_judged() -> None:
    part = table()
    low = Measured(part.gpu, part.batch, "linear", np.full(4, 50.0), None, True, "", part.held_out)
    models = KernelModels.for_gpu(load_gpu(part.gpu))
    assert judge(low, np.ones(4, dtype=bool), models, "low", "all") is None


def test_pooled_rows_are_all_the_rows() -> None:
    one = Judged("a", np.array([1.0]), np.array([1.0]), np.array([True]), "x")
    two = Judged("b", np.array([2.0]), np.array([1.0]), np.array([False]), "x")
    score = Judged.pooled("both", [one, two], "all").score((0.5, None))
    assert score.rows == 2 and "hold 50%" in score.note


def test_without_operators_of_models_there_is_nothing_to_score(tmp_path: Path) -> None:
    assert source_scores(tmp_path) == []


@pytest.mark.data
def test_products_of_real_models_on_boards_without_tables(measured_data: Path) -> None:
    by_name = {score.name: score for score in source_scores(measured_data)}
    assert by_name["source left out: gemm fp32 linear H100-SXM-80G"].gmae < 0.05
    assert by_name["source left out: gemm fp32 linear A100-PCIE-80G"].gmae < 0.05
