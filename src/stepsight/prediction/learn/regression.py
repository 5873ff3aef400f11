"""Factors of a machine's parts from measured steps: Bayesian regression in logarithms.

A machine is close to the usual one in all its parts, or one part is clearly off. For every such hypothesis
(part and severity) the step is asked exactly; what remains of ln(measured / predicted) is a sum over parts of
elasticity × ln(factor) with a narrow Gaussian prior, and scatter with heavy tails (Student t), so that a run
far from the others hardly counts. Hypotheses are averaged by how well they explain the runs. Priors are the
same for all machines: `data/constants/learn.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.platform.evidence import (
    ATTENTION,
    EMBEDDING,
    GEMM,
    HOST,
    LINK,
    MEMORY_BOUND,
    NETWORK,
    PARTS,
    TENSOR,
)

_C = area("learn")
OFF: tuple[tuple[str, ...], ...] = (
    (GEMM, ATTENTION), (MEMORY_BOUND,), (EMBEDDING,), (HOST,), (LINK,), (NETWORK,), (TENSOR,),
)  # fmt: skip
"""Parts that are off together: a clock moves GEMMs and attention."""
NUDGE = 0.05
"""The change of a factor's logarithm that elasticities are taken over."""
ROUNDS = 6
"""Of reweighting runs by how far they are from the others."""
FEWEST_WITH_OUTLIERS = 3

Factors = Mapping[str, float]


class Response(Protocol):
    """A priced step that can be asked again with other factors."""

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray: ...


def _hypotheses() -> tuple[tuple[FloatArray, float], ...]:
    """ln(factor) of every part, and the probability before any run."""
    spread, chance = _C.number("OFF_SPREAD"), _C.number("ONE_PART_OFF")
    severities = np.array(_C.numbers("SEVERITIES"))
    weights = np.exp(-0.5 * (severities / spread) ** 2)
    weights *= chance / len(OFF) / weights.sum()
    found = [(np.zeros(len(PARTS)), 1 - chance)]
    for parts, (severity, weight) in product(OFF, zip(severities, weights, strict=True)):
        found.append((np.array([severity if part in parts else 0.0 for part in PARTS]), float(weight)))
    return tuple(found)


HYPOTHESES = _hypotheses()


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured run. ``spread`` is that of ln(measured / predicted) which its prediction states without
    learning; ``slopes`` are d ln(step) / d ln(factor) by part, ``shifts`` ln(step / predicted) by hypothesis.
    """

    measured_us: float
    step_us: float
    spread: float
    slopes: FloatArray
    shifts: FloatArray

    @classmethod
    def of(cls, response: Response, measured_us: float, spread: float) -> Observed:
        """Ask a priced step everything that learning needs."""
        asked = [as_factors(at) for at, _ in HYPOTHESES] + _nudged({})
        steps = response.steps_us(asked)
        many = len(HYPOTHESES)
        return cls(
            measured_us, float(steps[0]), spread, _slopes(steps[many:]), np.log(steps[:many] / steps[0])
        )


def as_factors(logs: FloatArray) -> dict[str, float]:
    """Factors by part from their logarithms in the order of `PARTS`."""
    return {part: math.exp(log) for part, log in zip(PARTS, logs, strict=True)}


def elasticities(response: Response, at: Factors) -> FloatArray:
    """d ln(step) / d ln(factor) of every part, at these factors."""
    return _slopes(response.steps_us(_nudged(at)))


def _nudged(at: Factors) -> list[dict[str, float]]:
    base = {part: at.get(part, 1.0) for part in PARTS}
    return [{**base, part: base[part] * math.exp(way * NUDGE)} for part in PARTS for way in (1, -1)]


def _slopes(steps: FloatArray) -> FloatArray:
    return np.asarray(np.log(steps[::2] / steps[1::2]) / (2 * NUDGE))


@dataclass(frozen=True, slots=True)
class Posterior:
    """ln(factor) by part, in the order of `PARTS`, with covariance. ``unexplained``: scatter between runs
    that no factor takes away, as a share of a prediction's own spread; ``left_out``: outliers."""

    mean: FloatArray
    covariance: FloatArray
    unexplained: float
    left_out: tuple[int, ...] = ()

    @property
    def factors(self) -> dict[str, float]:
        return as_factors(self.mean)

    def spread(self, slopes: FloatArray, own: float) -> float:
        """Of ln(measured / predicted) of a step with these elasticities, whose prediction states ``own``
        without learning."""
        return math.hypot(
            self.unexplained * own, math.sqrt(max(float(slopes @ self.covariance @ slopes), 0.0))
        )


def part_covariance() -> FloatArray:
    """How far the parts of a machine are off that is close to the usual one, each by itself and together."""
    own = _C.by_name("PART_SPREADS")
    common = np.array(
        [_C.number("COMMON_SPREAD") * (part in PARTS[: PARTS.index(NETWORK) + 1]) for part in PARTS]
    )
    return np.asarray(np.diag([own[part] ** 2 for part in PARTS]) + np.outer(common, common))


def learn(rows: Sequence[Observed]) -> Posterior:
    """What the runs say of the parts; with none, the prior. Outliers are named and left out."""
    found, weights = _averaged(rows)
    if len(rows) < FEWEST_WITH_OUTLIERS:
        return found
    odd = [i for i in np.argsort(weights)[: len(rows) // 3] if weights[i] < _C.number("OUTLIER_WEIGHT")]
    if not odd:
        return found
    kept = [row for i, row in enumerate(rows) if i not in odd]
    return replace(_averaged(kept)[0], left_out=tuple(sorted(int(i) for i in odd)))


def _averaged(rows: Sequence[Observed]) -> tuple[Posterior, FloatArray]:
    """The posterior over all hypotheses, spreads and amounts of scatter, and the weight of every run."""
    x = np.array([row.slopes for row in rows]).reshape(len(rows), len(PARTS))
    own = np.array([row.spread for row in rows])
    shifts = np.array([row.shifts for row in rows]).reshape(len(rows), len(HYPOTHESES)).T
    y = np.array([math.log(row.measured_us / row.step_us) for row in rows])[None, :] - shifts
    at = np.array([logs for logs, _ in HYPOTHESES])
    before = np.log([chance for _, chance in HYPOTHESES])
    scale, wider = _C.numbers("WIDER")
    logs, means, covariances, shares, counted = [], [], [], [], []
    for (times, chance), (share, likely) in product(
        ((1.0, 1 - wider), (scale, wider)), zip(*_C.curve("UNEXPLAINED"), strict=True)
    ):
        prior = times**2 * part_covariance()
        fit, theta, covariance, weights = _fitted(x, y, share * own, prior)
        logs.append(fit + before + math.log(chance * likely))
        means.append(at + theta)
        covariances.append(covariance)
        counted.append(weights)
        shares.append(np.full(len(before), _C.number("TAIL") * share))
    log = np.concatenate(logs)
    chance = np.exp(log - log.max())
    chance /= chance.sum()
    each = np.concatenate(means)
    mean = chance @ each
    apart = each - mean
    covariance = (
        np.einsum("h,hij->ij", chance, np.concatenate(covariances)) + (apart * chance[:, None]).T @ apart
    )
    unexplained = math.sqrt(float(chance @ np.concatenate(shares) ** 2))
    return Posterior(mean, covariance, unexplained), chance @ np.concatenate(counted)


def _fitted(
    x: FloatArray, y: FloatArray, noise: FloatArray, prior: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Of each hypothesis (a row of ``y``): how well it explains the runs, ln(factors) around it with
    covariance, and the weight of each run (expectation-maximisation of Student t noise)."""
    freedom = _C.number("DEGREES_OF_FREEDOM")
    shared, eye = x @ prior @ x.T, np.eye(len(noise))
    weights = np.ones_like(y)
    for again in range(ROUNDS):
        k = shared + (noise**2 / weights)[:, :, None] * eye
        inverse = np.linalg.inv(k)
        explained = np.einsum("hij,hj->hi", inverse, y)
        if again < ROUNDS - 1:
            rest = y - explained @ shared
            weights = (freedom + 1) / (freedom + (rest / noise) ** 2)
    fit = -0.5 * (np.einsum("hi,hi->h", explained, y) + np.linalg.slogdet(k)[1])
    fit += 0.5 * freedom * (np.log(weights) - weights).sum(axis=1)
    gain = prior @ x.T
    covariance = prior - np.einsum("pi,hij,jq->hpq", gain, inverse, gain.T)
    return fit, explained @ gain.T, covariance, weights
