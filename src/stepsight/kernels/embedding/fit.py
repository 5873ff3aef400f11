"""Fit one phase of a CPU's lookups from measured tables."""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.cpu import PhaseModel, Residual, radial_basis

FEWEST_TABLES = 24
"""With fewer samples the rates alone are fitted, without a learned factor."""
_CENTRES = 400
_SWEEPS = 400
_WIDTHS, _RIDGES = (0.7, 1.0, 1.5, 2.2), (1e-3, 1e-2, 1e-1, 1.0)


def fit_phase(done: FloatArray, seen: FloatArray, measured_us: FloatArray, folds: IntArray) -> PhaseModel:
    """Rates, and a learned factor chosen by the error on samples of other folds."""
    rates = non_negative_rates(done, measured_us)
    log_error = np.log(measured_us / (done @ rates))
    if len(measured_us) < FEWEST_TABLES:
        return PhaseModel(rates, None, float(np.std(log_error)))
    mean, scale = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)  # a feature that never changed says nothing
    x = (seen - mean) / scale
    width, ridge, left = _choose(x, log_error, folds)
    centres = _spread_out(x, _CENTRES)
    weights = _solve(radial_basis(x, centres, width), radial_basis(centres, centres, width), log_error, ridge)
    return PhaseModel(rates, Residual(mean, scale, centres, weights, width), left)


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


def _choose(x: FloatArray, log_error: FloatArray, folds: IntArray) -> tuple[float, float, float]:
    """The width and ridge with the smallest error on folds left out, and that error."""
    best = (np.inf, _WIDTHS[0], _RIDGES[0])
    for width in _WIDTHS:
        left = {ridge: np.zeros(len(x)) for ridge in _RIDGES}
        for fold in np.unique(folds):
            inside, outside = folds != fold, folds == fold
            centres = _spread_out(x[inside], _CENTRES)
            basis, inner = radial_basis(x[inside], centres, width), radial_basis(centres, centres, width)
            outer = radial_basis(x[outside], centres, width)
            for ridge in _RIDGES:
                weights = _solve(basis, inner, log_error[inside], ridge)
                left[ridge][outside] = log_error[outside] - outer @ weights
        for ridge, error in left.items():
            best = min(best, (float(np.mean(np.abs(error))), width, ridge))
    return best[1], best[2], best[0] * 1.25  # mean |error| to a standard deviation, for a normal


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
