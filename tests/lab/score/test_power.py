"""A generation without its own entries of the power mechanism."""

from __future__ import annotations

import pytest

from lab.score.power import without
from stepsight.hardware.gpus import load_gpu
from stepsight.platform.power import Power


def test_without_its_entries_a_generation_draws_the_default() -> None:
    own, other = load_gpu("A100-SXM4-80G"), load_gpu("V100-SXM2-32G")

    def watts() -> tuple[float, float]:
        powers = [Power.of(gpu) for gpu in (own, other)]
        assert powers[0] and powers[1]
        return powers[0].flop_j["fp16"], powers[1].flop_j["fp16"]

    before = watts()
    with without("ampere"):
        left_out = watts()
    assert left_out[0] == pytest.approx(3.1 / 2.0 * before[0])
    assert left_out[1] == before[1]
    assert watts() == before
