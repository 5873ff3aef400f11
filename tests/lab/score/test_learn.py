"""The curve of error against runs learned from, on steps that are made up."""

from __future__ import annotations

import numpy as np

from lab.score.learn.topic import Row, curve, lines
from stepsight.prediction.learn.regression import Observed
from stepsight.prediction.learn.response import elasticities
from tests.prediction.learn.test_learn import Sum


def rows(factor: float, spread: float, count: int = 30) -> list[Row]:
    """Steps of GEMMs and host work on a machine whose GEMMs take ``factor`` times as long."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        gemm, host = rng.uniform(50, 100), rng.uniform(5, 20)
        measured = (factor * gemm + host) * np.exp(spread * rng.standard_normal())
        response = Sum(gemm=gemm, host=host)
        found.append(Row(Observed("run", response, float(measured), 0.1), *elasticities(response)))
    return found


def test_runs_of_a_slow_machine_teach_it() -> None:
    found = curve(rows(1.4, 0.05), draws=6)
    assert found[3].mape < 0.6 * found[0].mape
    assert found[10].mape < 0.45 * found[0].mape
    assert found[10].inside > 0.8


def test_runs_of_a_usual_machine_change_little() -> None:
    found = curve(rows(1.0, 0.05), draws=6)
    assert all(point.mape < found[0].mape + 0.01 for point in found.values())


def test_every_number_of_runs_has_a_line() -> None:
    points = curve(rows(1.4, 0.05), draws=2)
    made = lines("source", 30, points)
    assert [line.name for line in made] == [f"source, {k} runs learned" for k in points]
