"""Rehearsal steps find what microbenchmarks miss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.calibrate.draws import rehearsal_documents
from stepsight.calibrate.rehearsal import KINDS, Rehearsal, find_factors
from stepsight.platform.load import load_platform
from stepsight.workload.files import parse_workload


@pytest.fixture(scope="module")
def rehearsals(calibrated: Path) -> list[Rehearsal]:
    platform = load_platform(calibrated)
    documents = rehearsal_documents(2, 5, 3)
    return [Rehearsal.of(parse_workload(d, d["name"]), 1.0, platform, "cpu") for d in documents]


def test_steps_that_take_what_was_predicted_leave_the_models_alone(
    calibrated: Path, rehearsals: list[Rehearsal]
) -> None:
    platform, ones = load_platform(calibrated), np.ones(len(KINDS))
    exact = [_measured(r, r.step_us(ones, platform)) for r in rehearsals]
    found = find_factors(exact, platform)
    assert list(found.factors.values()) == pytest.approx(ones, abs=1e-6)
    assert found.spread < 1e-6


def test_slower_products_in_steps_are_found_and_the_steps_met(
    calibrated: Path, rehearsals: list[Rehearsal]
) -> None:
    platform, truth = load_platform(calibrated), np.ones(len(KINDS))
    truth[KINDS.index("gemm")] = 1.2
    truth[KINDS.index("host forward")] = 1.5
    slower = [_measured(r, r.step_us(truth, platform)) for r in rehearsals]
    found = find_factors(slower, platform)
    assert found.factors["gemm"] == pytest.approx(1.2, abs=0.06)
    before = [np.log(r.step_us(np.ones(len(KINDS)), platform) / r.measured_us) for r in slower]
    assert found.spread < min(0.03, float(np.std(before)))


def test_without_rehearsals_every_factor_is_one(calibrated: Path) -> None:
    assert set(find_factors([], load_platform(calibrated)).factors.values()) == {1.0}


def _measured(rehearsal: Rehearsal, time_us: float) -> Rehearsal:
    return Rehearsal(rehearsal.name, rehearsal.priced, time_us, rehearsal.launch_kind, rehearsal.mark_kind)
