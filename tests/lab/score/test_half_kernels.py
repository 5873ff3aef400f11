"""Scores of half-precision operators: rows that no fit saw are scored whole, impossible ones are counted."""

from pathlib import Path

import numpy as np
import pytest

from lab.datasets.kernel_tables.megatron import FILE, operators
from lab.score.kernels.half import half_scores
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels

GPU = "A100-SXM4-80G"
SIZES = {"mp": 1.0, "b": 4.0, "h": 32.0, "dim": 4096.0}


def table(
    lengths: tuple[float, ...], op: str = "gelu", gpu: str = "A100-SXM4-80G"
) -> dict[str, list[object]]:
    n = len(lengths)
    return {"gpu": [gpu] * n, "op": [op] * n, "l": list(lengths)} | {k: [v] * n for k, v in SIZES.items()}


def write(folder: Path, rows: dict[str, list[object]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    (folder / "kernels").mkdir()
    parquet.write_table(arrow.table(rows), folder / "kernels" / FILE)


def test_other_rows_than_the_fitted_ones_are_all_scored(tmp_path: Path) -> None:
    rows = table(tuple(float(256 * i) for i in range(4, 24)))
    models = KernelModels.for_gpu(load_gpu(GPU))
    for operator in operators(rows):
        rows[f"{operator.direction}_us"] = (
            models.estimate_batch(operator.kernels[0]).time_us * 1.02
        ).tolist()
    write(tmp_path, rows)
    scores = half_scores(tmp_path, "heldout")
    assert [score.rows for score in scores] == [20, 20]
    assert all(score.gmae == pytest.approx(0.02, abs=0.001) and score.met for score in scores)
    assert "90 % intervals hold" in scores[0].note


def test_rows_faster_than_the_gpu_can_be_are_counted(tmp_path: Path) -> None:
    rows = table((1024.0, 2048.0))
    rows["forward_us"], rows["backward_us"] = [200.0, 1.0], [300.0, np.nan]
    write(tmp_path, rows)
    forward, backward = half_scores(tmp_path, "all")
    assert forward.rows == backward.rows == 1
    assert "1 rows cannot be" in forward.rows_used


def test_rows_that_state_one_time_for_both_passes_stand_for_neither(tmp_path: Path) -> None:
    rows = table((1024.0, 2048.0, 4096.0))
    rows["forward_us"], rows["backward_us"] = [200.0, 800.0, 900.0], [300.0, 800.0, 1300.0]
    write(tmp_path, rows)
    for score in half_scores(tmp_path, "all"):
        assert score.rows == 2


def test_an_operator_that_always_states_one_time_is_scored(tmp_path: Path) -> None:
    rows = table((1024.0, 2048.0))
    rows["forward_us"] = rows["backward_us"] = [200.0, 400.0]
    write(tmp_path, rows)
    assert [score.rows for score in half_scores(tmp_path, "all")] == [2, 2]


def test_a_folder_without_the_file_is_skipped(tmp_path: Path) -> None:
    assert half_scores(tmp_path, "heldout") == []
