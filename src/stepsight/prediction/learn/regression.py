"""What measured steps say of a machine: Bayesian regression in logarithms.

ln(measured / predicted) of a run is the sum of three: factors of the machine's parts; what no factor explains
and jobs that resemble each other share (the discrepancy of Kennedy and O'Hagan 2001, a Gaussian process whose
covariance falls with the distance between jobs); and scatter of its own. A machine is close to the usual one
in all its parts, or one part is clearly off; for every such hypothesis (part and severity) the step is asked
exactly. Hypotheses and amounts are averaged by how well they explain the runs. Priors are the same for all
machines: `data/constants/learn.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Protocol

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.platform.evidence import (
    ATTENTION,
    DISTANCE,
    EMBEDDING,
    GEMM,
    HOST,
    LINK,
    MEMORY_BOUND,
    NETWORK,
    PARTS,
    TENSOR,
    Evidence,
    KnownJob,
)

_C = area("learn")
OFF: tuple[tuple[str, ...], ...] = (
    (GEMM, ATTENTION), (MEMORY_BOUND,), (EMBEDDING,), (HOST,), (LINK,), (NETWORK,), (TENSOR,),
)  # fmt: skip
"""Parts that are off together: a clock moves GEMMs and attention."""
NUDGE = 0.05
"""The change of a factor's logarithm that elasticities are taken over."""
ALONE = 20.0
"""A part this many times as slow is all that the step waits for: what it takes by itself shows."""
FEWEST_WITH_OUTLIERS = 3

Factors = Mapping[str, float]


class Response(Protocol):
    """A priced step that can be asked again with other factors."""

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray: ...


@cache
def _hypotheses() -> tuple[FloatArray, FloatArray]:
    """ln(factor) of every part by hypothesis, and the logarithm of its probability before any run."""
    severities = np.array(_C.numbers("SEVERITIES"))
    likely = np.exp(-0.5 * (severities / _C.OFF_SPREAD) ** 2)
    likely *= _C.ONE_PART_OFF / len(OFF) / likely.sum()
    logs = [[severity * (part in parts) for part in PARTS] for parts, severity in product(OFF, severities)]
    chances = [1 - _C.ONE_PART_OFF, *np.tile(likely, len(OFF))]
    return np.array([[0.0] * len(PARTS), *logs]), np.log(chances)


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured run. ``spread`` is that of ln(measured / predicted) which its prediction states without
    learning; ``slopes`` are d ln(step) / d ln(factor) by part, ``shifts`` ln(step / predicted) by hypothesis,
    ``at`` its job's place among others.
    """

    name: str
    response: Response
    measured_us: float
    step_us: float
    spread: float
    slopes: FloatArray
    shifts: FloatArray
    at: FloatArray

    @classmethod
    def of(
        cls, response: Response, measured_us: float, spread: float, machine: Sequence[float] = (),
        name: str = "",
    ) -> Observed:  # fmt: skip
        """Ask a priced step everything that learning needs; ``machine`` as `place` wants it."""
        logs, _ = _hypotheses()
        steps = response.steps_us([as_factors(at) for at in logs] + _nudged({}))
        step_us, shifts = float(steps[0]), np.log(steps[: len(logs)] / steps[0])
        at = place(response, step_us, machine)
        return cls(name, response, measured_us, step_us, spread, _slopes(steps[len(logs) :]), shifts, at)

    def log_ratio(self, factors: Factors) -> float:
        """ln(measured / predicted with these factors)."""
        return math.log(self.measured_us / float(self.response.steps_us([factors])[0]))


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


def place(response: Response, step_us: float, machine: Sequence[float]) -> FloatArray:
    """Where a job stands among others: what each part takes by itself as a share of the step, exposed or not,
    ln(step), and the logarithms of its ``machine``'s ranks, peak and bandwidth. The units are such that jobs
    one apart share e⁻¹ of what the factors do not explain."""
    unit = _C.by_name("RESEMBLANCE")
    shares = response.steps_us([{p: ALONE} for p in PARTS if p != DISTANCE]) / (ALONE * step_us)
    scaled = np.array(machine) * [unit[name] for name in ("ranks", "gpu", "gpu")[: len(machine)]]
    return np.concatenate([unit["share"] * shares, [unit["step"] * math.log(step_us)], scaled])


@dataclass(frozen=True, slots=True)
class Posterior:
    """ln(factor) by part, in the order of `PARTS`, what it comes from, and the outliers by number.
    ``log_likelihood``: how probable the runs are, all amounts and hypotheses together."""

    mean: FloatArray
    evidence: Evidence
    left_out: tuple[int, ...] = ()
    log_likelihood: float = 0.0

    @property
    def factors(self) -> dict[str, float]:
        return as_factors(self.mean)

    def of_job(self, run: Observed) -> tuple[float, float]:
        """ln(step / predicted with the factors) of a run's job, and its spread."""
        return self.evidence.of_job(run.slopes, run.spread, run.at)


UNLEARNED = Posterior(np.zeros(len(PARTS)), Evidence.none())
"""The prediction and its interval as they are."""


def learn(rows: Sequence[Observed]) -> Posterior:
    """What the runs say; with none, the prior. Runs far from what the others say are left out."""
    kept, found = list(range(len(rows))), _fitted(rows)
    while len(kept) >= max(FEWEST_WITH_OUTLIERS, len(rows) - len(rows) // 3 + 1):
        far = [abs(job.residual) / job.spread for job in found.evidence.jobs]
        worst = kept[int(np.argmax(far))]
        others = [i for i in kept if i != worst]
        without = _fitted([rows[i] for i in others])
        shift, spread = without.of_job(rows[worst])
        if abs(rows[worst].log_ratio(without.factors) - shift) < _C.OUTLIER * spread:
            break
        kept, found = others, without
    return replace(found, left_out=tuple(sorted(set(range(len(rows))) - set(kept))))


def part_covariance() -> FloatArray:
    """How far the parts of a machine are off that is close to the usual one, each by itself and together."""
    own = _C.by_name("PART_SPREADS")
    common = [_C.COMMON_SPREAD * (part not in (DISTANCE, TENSOR)) for part in PARTS]
    return np.asarray(np.diag([own[part] ** 2 for part in PARTS]) + np.outer(common, common))


def _fitted(rows: Sequence[Observed]) -> Posterior:
    """The posterior over all hypotheses and amounts of discrepancy and scatter."""
    many = len(rows)
    x = np.array([row.slopes for row in rows]).reshape(many, len(PARTS))
    own = np.array([row.spread for row in rows])
    at = np.array([row.at for row in rows]).reshape(many, len(rows[0].at) if rows else 0)
    off, likely = _hypotheses()
    y = np.array([math.log(row.measured_us / row.step_us) - row.shifts for row in rows]).reshape(
        many, len(off)
    )
    amounts = list(product(*(zip(*_C.curve(n), strict=True) for n in ("WIDER", "SHARED", "UNEXPLAINED"))))
    wider, shared, unexplained = np.array([[value for value, _ in one] for one in amounts]).T[
        :, :, None, None
    ]
    chance = np.log([[math.prod(likely for _, likely in one)] for one in amounts])
    near = np.exp(-np.abs(at[:, None] - at[None]).sum(axis=2))
    prior = wider**2 * part_covariance()
    gain = x @ prior
    beyond = shared**2 * near + unexplained**2 * np.eye(many)
    k = gain @ x.T + np.outer(own, own) * beyond
    inverse = np.linalg.inv(k)
    explained = inverse @ y
    fit = -0.5 * ((explained * y).sum(axis=1) + np.linalg.slogdet(k)[1][:, None])
    fit += chance + likely
    weight = np.exp(fit - fit.max())
    log_likelihood = float(fit.max() + np.log(weight.sum()))
    weight /= weight.sum()
    by_amount = weight.sum(axis=1)
    logs = off + np.einsum("gih,gip->ghp", explained, gain)
    mean = np.einsum("gh,ghp->p", weight, logs)
    covariance = np.einsum("g,gpq->pq", by_amount, prior - gain.transpose(0, 2, 1) @ inverse @ gain)
    covariance += np.einsum("gh,ghp,ghq->pq", weight, logs - mean, logs - mean)
    factors = as_factors(mean)
    jobs = tuple(KnownJob(r.name, r.log_ratio(factors), r.spread, tuple(r.at.tolist())) for r in rows)
    evidence = Evidence(
        tuple(map(tuple, covariance.tolist())), math.sqrt(by_amount @ unexplained.ravel() ** 2), many,
        shared=math.sqrt(by_amount @ shared.ravel() ** 2), jobs=jobs,
    )  # fmt: skip
    return Posterior(mean, evidence, log_likelihood=log_likelihood)
