"""Scoring lookups: hit rates, and sources left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.fit.embedding.gpu import MeasuredKernel, fit_coefficients, predict
from lab.fit.embedding.points import DEFAULT, POINTS, measured_kernels
from lab.score.embedding.topic import gpu_scores, hit_rate_score
from stepsight.hardware.gpus import load_gpu
from stepsight.program.job import Kernel


def test_hit_rates_are_within_two_points_of_lru() -> None:
    assert hit_rate_score().met


def test_rows_of_the_fit_are_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel("embedding", (), "fp32")
    points = [MeasuredKernel(source, load_gpu("V100-SXM2-16G"), kernel, 10.0) for source in (POINTS, DEFAULT)]
    monkeypatch.setattr("lab.score.embedding.topic.predict", lambda p: np.full(len(p), 11.0))
    monkeypatch.setattr("lab.score.embedding.topic.predict_left_out", lambda p: np.full(len(p), 12.0))
    fitted = {line.name: line.exposure for line in gpu_scores(points)}
    assert fitted["V100 points"] == fitted["V100 DLRM lists' lookups"] == "fit"
    assert fitted[f"{POINTS}, left out"] == "chosen"
    assert {line.exposure for line in gpu_scores(points, fitted=False)} == {"blind"}


@pytest.mark.data
def test_coefficients_can_be_fitted_again_without_a_source(measured_data: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("pyarrow")
    points = [p for p in measured_kernels(measured_data) if p.source != DEFAULT]
    fitted = fit_coefficients(points)
    assert 0.7 <= fitted.read_efficiency <= 0.95
    assert len(predict(points)) == len(points)
