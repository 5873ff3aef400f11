"""Scoring kernels: the shipped models on shapes that took no part in the fit."""

from pathlib import Path

import pytest

from lab.score.kernels.topic import _compare, _event_rows


@pytest.mark.data
def test_held_out_linear_layers_read_within_three_per_cent(measured_data: Path) -> None:
    part = next(p for p in _event_rows(measured_data) if p.gpu == "V100-PCIE-32G" and p.variant == "linear")
    score = _compare(part, "heldout").score((0.03, 0.06))
    assert score.met and score.rows > 300
