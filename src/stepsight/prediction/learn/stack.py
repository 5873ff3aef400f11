"""Which training stack runs look like, where their rows name none.

A recipe is a hypothesis like a part that is off: under each, the same runs are learned from, and answers are
averaged by how well the recipes explain the runs (Bayesian model averaging). Likely beforehand is the usual
recipe, so that few runs change it only where they fit it badly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.prediction.learn.regression import UNLEARNED, Posterior, learn
from stepsight.prediction.learn.runs import Run
from stepsight.workload.llm.recipe import families

_C = area("learn")
MOST_TRIED = 5
"""Recipes that are learned under: those whose steps agree best with the runs up to a common factor."""
SAME = 1e-3
"""Recipes whose steps differ by less are one hypothesis."""
LEAST_PROBABILITY = 0.01


@dataclass(frozen=True, slots=True)
class Stack:
    """``recipe`` that the runs may have used, with its probability; empty: the usual one, or as rows name it.
    ``runs`` and what they say under it."""

    recipe: str
    probability: float
    runs: tuple[Run, ...]
    found: Posterior

    def of(self, run: Run) -> tuple[float, float]:
        """ln(step in µs) of a run's job, and its spread."""
        run = run.of_recipe(self.recipe)
        one = run.observed
        shift, spread = self.found.of_job(one)
        scaled_us = run.asked.step_us / one.step_us * one.measured_us
        return math.log(scaled_us) - one.log_ratio(self.found.factors) + shift, spread


NOTHING = (Stack("", 1.0, (), UNLEARNED),)
"""The prediction and its interval as they are."""


def fit(runs: Sequence[Run]) -> tuple[Stack, ...]:
    """What the runs say under every recipe that explains them, the most probable first."""
    tried = ["", *_likely(runs)]
    usual = _C.USUAL_RECIPE if len(tried) > 1 else 1.0
    found: list[Stack] = []
    for name in tried:
        rows = tuple(run.of_recipe(name) for run in runs)
        posterior = learn([run.observed for run in rows])
        prior = (1 - usual) / (len(families()) - 1) if name else usual
        found.append(Stack(name, posterior.log_likelihood + math.log(prior), rows, posterior))
    top = max(one.probability for one in found)
    weights = [math.exp(one.probability - top) for one in found]
    kept = [(w, one) for w, one in zip(weights, found, strict=True) if w >= LEAST_PROBABILITY * sum(weights)]
    whole = sum(w for w, _ in kept)
    made = [Stack(one.recipe, w / whole, one.runs, one.found) for w, one in kept]
    return tuple(sorted(made, key=lambda one: -one.probability))


def _likely(runs: Sequence[Run]) -> list[str]:
    """Recipes whose steps differ from the usual ones, the best first."""
    if not any(run.stacks for run in runs):
        return []
    seen = [np.array([run.asked.step_us for run in runs])]
    misfits: dict[str, float] = {}
    for recipe in families().values():
        asked = [] if recipe.framework.plain else [run.asked_in(recipe.name) for run in runs]
        steps = np.array([one.step_us for one in asked if one])
        if len(steps) < len(runs) or any(np.allclose(steps, other, rtol=SAME) for other in seen):
            continue
        seen.append(steps)
        misfits[recipe.name] = _misfit(runs, steps)
    return sorted(misfits, key=lambda name: misfits[name])[:MOST_TRIED]


def _misfit(runs: Sequence[Run], steps: FloatArray) -> float:
    """-2 ln likelihood of the runs with a common factor that is known to `OFF_SPREAD`, up to a constant."""
    y = np.log([run.observed.measured_us for run in runs]) - np.log(steps)
    weights = np.array([run.observed.spread for run in runs]) ** -2
    shared = (weights @ y) ** 2 / (weights.sum() + _C.OFF_SPREAD**-2)
    return float(weights @ y**2 - shared)
