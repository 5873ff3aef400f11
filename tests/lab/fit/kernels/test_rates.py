"""Rows measured at two clock rates."""

import numpy as np
import pytest

from lab.fit.kernels.boost import Settings, at_one_rate

SETTINGS = Settings(trees=60, depth=3, features=1.0)


def rows(n: int = 800) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    table = rng.uniform(0, 1, (3, n))
    return table, 0.5 * (table[0] > 0.5) + rng.normal(0, 0.005, n)


def test_the_rate_with_the_lesser_scatter_is_taken() -> None:
    table, target = rows()
    rng = np.random.default_rng(1)
    target[400:] += 0.14
    target[:400] += rng.normal(0, 0.03, 400)
    predicted = at_one_rate(table, target, SETTINGS).predict(table.astype(np.float32))
    assert np.median(predicted[400:] - target[400:]) == pytest.approx(0.0, abs=0.01)


def test_rows_at_one_rate_are_fitted_as_they_are() -> None:
    table, target = rows()
    predicted = at_one_rate(table, target, SETTINGS).predict(table.astype(np.float32))
    assert np.abs(predicted - target).mean() < 0.01
