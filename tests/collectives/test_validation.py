"""The bars that the curves must clear on measured tables (skipped where those are absent)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.fit.collectives.rows import read_nccl
from lab.score.collectives.topic import (
    below,
    every_other,
    left_out,
    measured_curves,
    scores,
    six_sizes,
)
from stepsight.collectives import Curve

pytestmark = pytest.mark.data


def timer(sizes, times):
    return Curve.fit(sizes, times).time_us


@pytest.fixture(scope="module")
def curves(measured_data: Path):
    return measured_curves(read_nccl(measured_data), stated_only=True)


def test_every_other_size_is_met_within_the_bars(curves):
    errors = np.array(left_out(curves, every_other, timer))[:, 0]
    assert len(errors) == 563
    assert np.median(errors) <= 0.025 and np.quantile(errors, 0.9) <= 0.07


def test_six_sizes_serve_almost_as_well(measured_data: Path):
    curves = measured_curves(read_nccl(measured_data), stated_only=False)
    assert np.median(np.array(left_out(curves, six_sizes, timer))[:, 0]) <= 0.038


def test_above_the_range_the_slope_goes_on(curves):
    assert np.median(np.array(left_out(curves, below(4), timer, 5))[:, 0]) <= 0.057


def test_a_folder_without_tables_scores_nothing(tmp_path: Path):
    assert scores(tmp_path) == []
