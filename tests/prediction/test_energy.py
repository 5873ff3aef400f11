"""The energy of a step."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stepsight import predict
from stepsight.cli import cli

MODEL = {
    "kind": "transformer", "family": "llama", "layers": 8, "hidden": 4096, "heads": 32, "ffn": 11008,
    "vocab": 32000, "sequence": 4096, "global_batch": 16, "training": {"framework": "megatron"},
}  # fmt: skip


def test_no_board_draws_more_than_its_limit_or_less_than_idle() -> None:
    found = predict(MODEL, "8xH100-SXM").energy
    assert found is not None and 105 < found.gpu_w <= 700
    assert found.step_wh == pytest.approx(found.step_j / 3600)


def test_a_lower_limit_takes_longer_and_less_energy() -> None:
    usual, low = (predict(MODEL, p) for p in ("8xH100-SXM", "8xH100-PCIE"))
    assert low.step_time_us > usual.step_time_us
    assert usual.energy is not None and low.energy is not None and low.energy.clock < usual.energy.clock


def test_carbon_goes_with_energy() -> None:
    asked = ["predict", "--model", "llama3-8b", "-p", "8xH100-SXM", "--json", "--carbon", "400"]
    found = json.loads(CliRunner().invoke(cli, asked).output)["energy"]
    assert found["grams_co2"] == pytest.approx(0.4 * found["step_wh"])
