"""Fit one phase of a CPU's lookups from measured tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.cpu.time import PhaseModel, Residual, radial_basis

FEWEST_CALLS = 24
"""With fewer samples the rates alone are fitted, without a learned factor."""
_CENTRES = 400
_SWEEPS = 400
_WIDTHS, _RIDGES = (0.7, 1.0, 1.5, 2.2), (1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True, slots=True)
class Calls:
    """Which tables one call looks up: ``first[i]`` to before ``first[i + 1]`` of all tables in order."""

    first: IntArray
    tables: int

    @classmethod
    def of(cls, tables_each: Sequence[int]) -> Calls:
        """Calls of so many tables each."""
        ends = np.cumsum(tables_each)
        return cls(np.asarray(ends - tables_each, dtype=np.int64), int(ends[-1]))

    def sums(self, of_tables: FloatArray) -> FloatArray:
        """Over the tables of each call."""
        return np.asarray(np.add.reduceat(of_tables, self.first, axis=0))

    def spread(self, of_calls: np.typing.NDArray[Any]) -> np.typing.NDArray[Any]:
        """A call's value for each of its tables."""
        return np.asarray(np.repeat(of_calls, np.diff(self.first, append=self.tables), axis=0))


def fit_phase(
    done: FloatArray, seen: FloatArray, measured_us: FloatArray, folds: IntArray, calls: Calls | None = None
) -> PhaseModel:
    """Rates, and a learned factor chosen by the error on calls of other folds.

    ``done`` and ``seen`` are of tables, times and folds of ``calls``; without these each table
    has a call of its own, whose start is part of its work.
    """
    joined = Calls.of([1] * len(done)) if calls is None else calls
    own = joined.sums(done)
    start_us, rates = 0.0, non_negative_rates(own, measured_us)
    if calls is not None:
        with_start = non_negative_rates(np.column_stack([np.ones(len(own)), own]), measured_us)
        start_us, rates = float(with_start[0]), with_start[1:]
    base = done @ rates
    whole = start_us + joined.sums(base)
    log_error = np.log(measured_us / whole)
    if len(measured_us) < FEWEST_CALLS:
        return PhaseModel(rates, None, float(np.std(log_error)), start_us)
    mean, scale = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)  # a feature that never changed says nothing
    learning = _Learning((seen - mean) / scale, base / joined.spread(whole), joined)
    width, ridge, left = learning.choose(log_error, folds)
    centres, weights = learning.fit(log_error, width, ridge)
    return PhaseModel(rates, Residual(mean, scale, centres, weights, width), left, start_us)


def non_negative_rates(done: FloatArray, measured: FloatArray) -> FloatArray:
    """Rates ≥ 0 that make the relative errors small, by coordinate descent."""
    a = done / measured[:, None]
    done_at_all = a.max(axis=0) > 0
    size = np.where(done_at_all, np.sqrt((a**2).mean(axis=0)), 1.0)
    a = a / size
    gram, right = a.T @ a, a.sum(axis=0)
    rates = np.where(done_at_all, 1.0 / a.shape[1], 0.0)
    for _ in range(_SWEEPS):
        for j in range(len(rates)):
            if done_at_all[j]:
                rates[j] = max(0.0, rates[j] + (right[j] - gram[j] @ rates) / gram[j, j])
    return np.asarray(rates / size)


@dataclass(frozen=True, slots=True)
class _Learning:
    """Tables as the learned factor sees them: features, and their share of their call's time.

    ln of a call's factor is the mean over its tables, weighted by these shares: to first order the
    factor that multiplies each table's own time.
    """

    x: FloatArray
    share: FloatArray
    calls: Calls

    def choose(self, log_error: FloatArray, folds: IntArray) -> tuple[float, float, float]:
        """The width and ridge with the smallest error on folds left out, and that error."""
        best = (np.inf, _WIDTHS[0], _RIDGES[0])
        for width in _WIDTHS:
            left = {ridge: np.zeros(len(folds)) for ridge in _RIDGES}
            for fold in np.unique(folds):
                inside, outside = folds != fold, folds == fold
                centres = _spread_out(self.x[self.calls.spread(inside)], _CENTRES)
                basis, inner = self._basis(centres, width), radial_basis(centres, centres, width)
                for ridge in _RIDGES:
                    weights = _solve(basis[inside], inner, log_error[inside], ridge)
                    left[ridge][outside] = log_error[outside] - basis[outside] @ weights
            for ridge, error in left.items():
                best = min(best, (float(np.mean(np.abs(error))), width, ridge))
        return best[1], best[2], best[0] * 1.25  # mean |error| to a standard deviation, for a normal

    def fit(self, log_error: FloatArray, width: float, ridge: float) -> tuple[FloatArray, FloatArray]:
        """Centres and weights from all calls."""
        centres = _spread_out(self.x, _CENTRES)
        inner = radial_basis(centres, centres, width)
        return centres, _solve(self._basis(centres, width), inner, log_error, ridge)

    def _basis(self, centres: FloatArray, width: float) -> FloatArray:
        return self.calls.sums(radial_basis(self.x, centres, width) * self.share[:, None])


def _solve(basis: FloatArray, inner: FloatArray, target: FloatArray, ridge: float) -> FloatArray:
    """Kernel ridge regression on a subset of centres."""
    system = basis.T @ basis + ridge * inner + 1e-8 * np.eye(len(inner))
    return np.asarray(np.linalg.solve(system, basis.T @ target))


def _spread_out(x: FloatArray, count: int) -> FloatArray:
    """Points far from each other (farthest first), so that the edges of the data are covered."""
    if len(x) <= count:
        return x
    chosen = [0]
    distance = ((x - x[0]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(1))
    return x[chosen]
