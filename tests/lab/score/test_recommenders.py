"""Published steps and lookups of recommender models, where the measured tables are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.datasets.llm.case import catalogue_gpu
from lab.score.e2e import dlrm_hugectr, dlrm_multi
from lab.score.embedding import h100

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.skipif(not (DATA / h100.FILE).is_file(), reason="measured tables are absent")
def test_lookups_on_an_h100_are_within_the_bar_without_a_fit():
    figures = h100.figures(DATA)
    assert figures["forward_gmae"] <= h100.BAR
    assert figures["backward_gmae"] <= h100.BAR


@pytest.mark.skipif(not (DATA / dlrm_hugectr.FILE).is_file(), reason="measured tables are absent")
def test_hugectrs_steps_are_within_the_bar():
    found = dlrm_hugectr.rows(DATA)
    for name in (dlrm_hugectr.SET, dlrm_hugectr.EARLIER):
        assert np.median([abs(row.error) for row in found if row.set == name]) <= 0.12


@pytest.mark.parametrize(
    ("gpu", "gpus", "nodes", "platform"),
    [
        ("NVIDIA H100-SXM5-80GB", 8, 2, "2x4xH100-SXM-80G"),
        ("NVIDIA HGX B300", 16, 0, "2x8xB300-SXM-288G"),
        ("NVIDIA Grace Blackwell Superchip (GB200-NVL72)", 8, 2, "8xGB200-186G"),
        ("NVIDIA GB200", 128, 32, "2x64xGB200-186G"),
        ("NVIDIA GB300", 144, 36, "2x72xGB300-288G"),
    ],
)
def test_a_link_joins_the_gpus_of_a_rack(gpu: str, gpus: int, nodes: int, platform: str):
    board = catalogue_gpu(gpu)
    assert board is not None
    assert dlrm_hugectr.platform_of(board, gpus, nodes) == platform


@pytest.mark.parametrize(
    ("text", "board"),
    [
        ("8x A100 80GB", "A100-SXM4-80G"),
        ("DGX A100 80GB", "A100-SXM4-80G"),
        ("A100 80GB", "A100-SXM4-80G"),
        ("8x A100 40GB", "A100-SXM4-40G"),
        ("DGX A100 40GB", "A100-SXM4-40G"),
        ("8x V100 32GB", "V100-SXM2-32G"),
        ("DGX-1 V100 32GB", "V100-SXM2-32G"),
        ("16x V100 32GB", "V100-SXM3-32G"),
        ("16x V100-SXM3 32GB", "V100-SXM3-32G"),
        ("DGX-2", "V100-SXM3-32G"),
        ("Gaudi 2", None),
    ],
)
def test_boards_of_nvidias_example(text: str, board: str | None):
    assert dlrm_multi.nvidia_board(text) == board
