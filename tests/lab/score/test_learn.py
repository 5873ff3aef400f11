"""The curve of error against runs learned from, on steps that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.score.learn import curve_of, lines
from stepsight.platform.load import load_platform
from stepsight.prediction.learn.lesson import CurvePoint
from stepsight.prediction.learn.response import AskedStep, ask, load_any
from stepsight.prediction.learn.runs import Run
from tests.prediction.learn.test_learn import Sum

ASKED = ask(load_any("examples/dlrm.toml"), load_platform("8xH100-SXM"))


def rows(factor: float, spread: float, count: int = 30) -> list[Run]:
    """Steps of GEMMs and host work on a machine whose GEMMs take ``factor`` times as long."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        gemm, host = rng.uniform(50, 100), rng.uniform(5, 20)
        measured = (factor * gemm + host) * np.exp(spread * rng.standard_normal())
        asked: AskedStep = replace(ASKED, response=Sum(gemm=gemm, host=host), step_us=gemm + host, spread=0.1)
        found.append(Run.of("run", asked, float(measured)))
    return found


def by_runs(points: tuple[CurvePoint, ...]) -> dict[int, CurvePoint]:
    return {point.runs: point for point in points}


def test_runs_of_a_slow_machine_teach_it() -> None:
    found = by_runs(curve_of(rows(1.4, 0.05), draws=6))
    assert found[3].mape < 0.6 * found[0].mape
    assert found[10].mape < 0.45 * found[0].mape
    assert found[10].inside > 0.8


def test_runs_of_a_usual_machine_change_little() -> None:
    found = by_runs(curve_of(rows(1.0, 0.05), draws=6))
    assert all(point.mape < found[0].mape + 0.015 for point in found.values())


def test_every_number_of_runs_has_a_line() -> None:
    points = curve_of(rows(1.4, 0.05), draws=2)
    made = lines("source", 30, points)
    assert [line.name for line in made] == [f"source, {p.runs} runs learned" for p in points]
