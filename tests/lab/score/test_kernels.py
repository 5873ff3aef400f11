"""Scoring kernels: the shipped models on shapes that took no part in the fit."""

from pathlib import Path

import pytest

from lab.score.kernels.dlrm import MODELS, dlrm_scores, kernels
from lab.score.kernels.topic import _compare, _event_rows


def test_without_tables_there_is_nothing_to_sum(tmp_path: Path) -> None:
    assert dlrm_scores(tmp_path) == []


def test_the_dlrm_lists_have_forward_backward_and_update() -> None:
    families = [kernel.family for kernel in kernels(MODELS[0])]
    assert families.count("embedding") == families.count("embedding_backward") == 1
    assert families.count("gemm") == 6 + 11 + 3  # forward, two a layer but the first, the interaction


@pytest.mark.data
def test_the_v100_kernel_lists_sum_to_within_five_per_cent(measured_data: Path) -> None:
    assert all(score.met for score in dlrm_scores(measured_data))


@pytest.mark.data
def test_held_out_linear_layers_read_within_three_per_cent(measured_data: Path) -> None:
    part = next(p for p in _event_rows(measured_data) if p.gpu == "V100-PCIE-32G" and p.variant == "linear")
    score = _compare(part, "heldout").score((0.03, 0.06))
    assert score.met and score.rows > 300
