"""Factors of a machine's parts from measured steps: Bayesian linear regression in logarithms.

In logarithms a measured step differs from its prediction by the sum over parts of elasticity × ln(factor),
and by what no part explains. A Gaussian prior on the factors (how far an unmeasured machine may be off) makes
the sum a linear regression: a run moves what it is sensitive to, runs move together what they share.
Elasticities hold near the factors that they were taken at, so they are taken again until the factors no
longer move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.evidence import PARTS
from stepsight.prediction.learn.constants import (
    COMMON_SPREAD,
    OUTLIER_ODDS,
    OUTLIER_SPREAD,
    PRIOR,
    PRIOR_SCALES,
    UNEXPLAINED,
    UNEXPLAINED_SURENESS,
)
from stepsight.prediction.learn.response import Factors, Response, elasticities

STILL = 0.005
"""A largest move of any ln(factor) below which elasticities are not taken again."""
MOST_ROUNDS, MOST_HALVINGS = 8, 5
"""A move that makes the fit worse is halved: elasticities do not hold as far away."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A run: its step as a response to the parts, what was measured, and the spread of ln(measured /
    predicted) that its prediction states without learning."""

    name: str
    response: Response
    measured_us: float
    spread: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """ln(factor) by part, in the order of `PARTS`, with covariance. ``unexplained``: the share of a
    prediction's own spread that differs from run to run and that no factor takes away. ``left_out``:
    positions of outliers."""

    mean: FloatArray
    covariance: FloatArray
    unexplained: float
    left_out: tuple[int, ...] = ()

    @property
    def factors(self) -> dict[str, float]:
        return {part: float(math.exp(m)) for part, m in zip(PARTS, self.mean, strict=True)}

    def spread(self, slopes: FloatArray, own: float) -> float:
        """Of ln(measured / predicted) of a step with these elasticities, whose prediction states ``own``
        without learning."""
        return math.hypot(
            self.unexplained * own, math.sqrt(max(float(slopes @ self.covariance @ slopes), 0.0))
        )


def prior_covariance() -> FloatArray:
    """How far the parts of an unmeasured machine may be off, each by itself and all together."""
    own = np.array([PRIOR[part].value for part in PARTS])
    common = np.array([COMMON_SPREAD.value * PRIOR[part].shares_common for part in PARTS])
    return np.asarray(np.diag(own**2) + np.outer(common, common))


def learn(rows: Sequence[Observed], prior: FloatArray | None = None) -> Posterior:
    """What the runs say of the parts; with no rows, the prior."""
    before = prior_covariance() if prior is None else prior
    if not rows:
        return Posterior(np.zeros(len(PARTS)), before, UNEXPLAINED.value)
    own = np.array([row.spread for row in rows])
    at = np.zeros(len(PARTS))
    slopes, apart = _linearised(rows, at)
    for _ in range(MOST_ROUNDS):
        found = regression(slopes, apart + slopes @ at, own, before)
        cost = _cost(at, apart, own, found, before)
        move = found.mean - at
        for _ in range(MOST_HALVINGS):
            tried = _linearised(rows, at + move)
            if _cost(at + move, tried[1], own, found, before) <= cost:
                break
            move = move / 2
        else:
            break
        at, (slopes, apart) = at + move, tried
        if np.abs(move).max() < STILL:
            break
    found = regression(slopes, apart + slopes @ at, own, before)
    return replace(found, mean=at)


def _cost(at: FloatArray, apart: FloatArray, own: FloatArray, found: Posterior, prior: FloatArray) -> float:
    """How badly ln(factors) explain the runs that were kept, and how unlikely they are by themselves."""
    kept = [i for i in range(len(apart)) if i not in found.left_out]
    misses = (apart[kept] / (found.unexplained * own[kept])) ** 2
    return float(misses.sum() + at @ np.linalg.solve(prior, at))


def _linearised(rows: Sequence[Observed], at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Elasticities of every run at these ln(factors), and ln(measured / predicted) there."""
    factors: Factors = {part: float(math.exp(m)) for part, m in zip(PARTS, at, strict=True)}
    slopes, apart = [], []
    for row in rows:
        step_us, slope = elasticities(row.response, factors)
        slopes.append(slope)
        apart.append(math.log(row.measured_us / step_us))
    return np.array(slopes), np.array(apart)


def regression(slopes: FloatArray, y: FloatArray, own: FloatArray, prior: FloatArray) -> Posterior:
    """The posterior of one linearisation, averaged over all hypotheses by how well each explains the runs.

    Hypotheses differ in how far the machine is from the usual one (`PRIOR_SCALES`), in the unexplained share,
    and in which run, if any, is of another kind than the others.
    """
    kept, left = list(range(len(y))), list[int]()
    found = _averaged(slopes, y, own, prior)
    while len(left) < len(y) // 3 and found.suspect is not None:
        left.append(kept.pop(found.suspect))
        found = _averaged(slopes[kept], y[kept], own[kept], prior)
    return Posterior(found.mean, found.covariance, found.unexplained, tuple(sorted(left)))


@dataclass(frozen=True, slots=True)
class _Average:
    mean: FloatArray
    covariance: FloatArray
    unexplained: float
    suspect: int | None
    """A run that is likelier of another kind than not."""


def _averaged(x: FloatArray, y: FloatArray, own: FloatArray, prior: FloatArray) -> _Average:
    runs = len(y)
    logs, means, covariances, shares, odd = [], [], [], [], []
    shared = x @ prior @ x.T
    for outlier in (None, *range(runs)):
        noise = np.ones(runs)
        if outlier is not None:
            noise[outlier] = 0.0
        for scale, chance_of in PRIOR_SCALES:
            for share, weight in _shares():
                variance = np.where(noise > 0, (share * own) ** 2, OUTLIER_SPREAD.value**2)
                k = scale**2 * shared + np.diag(variance)
                inverse = np.linalg.inv(k)
                _, determinant = np.linalg.slogdet(k)
                chance = OUTLIER_ODDS.value if outlier is not None else 1.0 - runs * OUTLIER_ODDS.value
                logs.append(
                    -0.5 * (y @ inverse @ y + determinant)
                    + math.log(chance_of * weight * max(chance, 0.5 / (1 + runs)))
                )
                gain = scale**2 * prior @ x.T @ inverse
                means.append(gain @ y)
                covariances.append(scale**2 * (prior - gain @ x @ prior))
                shares.append(share)
                odd.append(-1 if outlier is None else outlier)
    log = np.array(logs)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = weights @ np.array(means)
    apart = np.array(means) - mean
    covariance = np.einsum("h,hij->ij", weights, np.array(covariances)) + (apart * weights[:, None]).T @ apart
    chances = [float(weights[np.array(odd) == i].sum()) for i in range(runs)]
    worst = int(np.argmax(chances)) if runs >= 3 else -1
    suspect = worst if worst >= 0 and chances[worst] > 0.5 else None
    return _Average(mean, covariance, float(np.sqrt(weights @ np.array(shares) ** 2)), suspect)


def _shares() -> list[tuple[float, float]]:
    """Unexplained shares with their prior weights."""
    steps = np.linspace(-2.0, 6.0, 17)
    weights = np.exp(-0.5 * steps**2)
    values = UNEXPLAINED.value * np.exp(UNEXPLAINED_SURENESS.value * steps)
    return list(zip(values.tolist(), (weights / weights.sum()).tolist(), strict=True))
