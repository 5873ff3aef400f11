"""The odds of a slow run on the H100 sweep's cluster, fitted on its runs and again without each group.

A run is taken as slow where its measured time is nearer to the prediction of the slow state than to that of
the usual one. ``odds.json`` is what ``python -m lab fit llm`` made: the `SlowOdds` from all groups (model ×
nodes), and those without each. A group's rows are scored, and chosen among, with the latter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
import numpy as np

from stepsight.collectives.stalls import SlowOdds, Stalls
from stepsight.estimate import FloatArray
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.llm.slow_runs import job_layout, slow_state

FILE = "odds.json"
RIDGE, FIRST_RIDGE = 0.03, 0.01
"""Penalty on the squares of weights: it keeps columns that few runs have from certainty (of 0.01 to 0.6, the
one with the least log loss of left-out groups). The first, which all runs have, is hardly held."""
FULL = 0.3
"""Runs that are likelier than this to be slow because no other fits tell nothing of the odds."""
ROUNDS = 50
"""Newton's method is done after about ten."""


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run: its group, the columns that its odds depend on, and which state it was in."""

    group: str
    columns: Mapping[str, float]
    slow: bool


@dataclass(frozen=True, slots=True)
class Odds:
    """Odds of all groups, and those without each."""

    all: SlowOdds
    without: Mapping[str, SlowOdds]

    def of(self, group: str) -> SlowOdds:
        """What a group is scored with: odds that it took no part in."""
        return self.without.get(group, self.all)


@cache
def shipped_odds() -> Odds:
    """The odds that ship; even ones where the file is absent."""
    file = resources.files("lab.score.llm") / FILE
    return msgspec.json.decode(file.read_bytes(), type=Odds) if file.is_file() else Odds(SlowOdds({}), {})


def run_of(composer: Composer, measured_ms: float, group: str) -> Run | None:
    """A run and its state; None where its layout has one state only, or memory may decide it."""
    state = slow_state(composer)
    if state is None:
        return None
    layout = job_layout(composer.c, composer.pricer.platform)
    if layout.overfull > FULL:
        return None
    usual, slow = composer.step().step_us, composer.step(state=state).step_us
    nearer = abs(math.log(1e3 * measured_ms / slow)) < abs(math.log(1e3 * measured_ms / usual))
    return Run(group, layout.columns(), nearer)


def fit_odds(runs: Sequence[Run]) -> Odds:
    """Odds from all runs and without each group."""
    others = {g: [r for r in runs if r.group != g] for g in dict.fromkeys(run.group for run in runs)}
    return Odds(_fitted(runs), {group: _fitted(rest) for group, rest in others.items() if rest})


def _fitted(runs: Sequence[Run]) -> SlowOdds:
    """Ridge logistic regression by Newton's method; the last curvature tells how sure the weights are."""
    names = list(runs[0].columns)
    x = np.array([[run.columns[name] for name in names] for run in runs])
    slow = np.array([float(run.slow) for run in runs])
    penalty = np.diag([FIRST_RIDGE if name == names[0] else RIDGE for name in names])
    weights: FloatArray = np.zeros(len(names))
    curvature: FloatArray = penalty
    for _ in range(ROUNDS):
        share = 1 / (1 + np.exp(-x @ weights))
        slope = x.T @ (share - slow) + penalty @ weights
        curvature = x.T @ (x * (share * (1 - share))[:, None]) + penalty
        step = np.linalg.solve(curvature, slope)
        weights = weights - step
        if float(np.abs(step).max()) < 1e-9:
            break
    covariance = np.linalg.inv(curvature)
    return SlowOdds(
        {name: round(float(weight), 3) for name, weight in zip(names, weights, strict=True)},
        tuple(tuple(round(float(c), 4) for c in row) for row in covariance),
    )


def stalls_of(group: str, check_us: float, poll_us: float) -> Stalls:
    """The site's slow state as a group sees it that took no part in its odds."""
    return Stalls(check_us, poll_us, shipped_odds().of(group))
