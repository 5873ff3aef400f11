"""Fitting what physics leaves open: boosted trees on ln(time / base), scored on shapes left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lab.fit.kernels.boost import Settings, boost
from lab.fit.kernels.rates import at_one_rate
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.learned.residual import Residual
from stepsight.kernels.learned.trees import ObliviousTrees
from stepsight.score import gmae

SETTINGS = Settings(trees=150, depth=4, rate=0.1)
"""Few, shallow trees: the base carries the shape; chosen on the left-out fifth of A100's operators."""
LEAST_SPREAD = 0.01
ROUNDS = 4
"""Fits, each weighing rows by the inverse of the last one's error: towards the median, which repeated
measurements at two clock rates (A100's rows of one shape differ by up to 1.24) do not pull between them."""
LEAST_ERROR = 0.02


def fit_residual(
    family: str, variant: str, spec: GpuSpec, named: Mapping[str, FloatArray], base_us: FloatArray,
    time_us: FloatArray, left_out: npt.NDArray[np.bool_], source: str, settings: Settings = SETTINGS,
    rounds: int = ROUNDS, two_rates: bool = False,
) -> Residual:  # fmt: skip
    """Trees on the rows that are not left out; spread and error on those that are.

    ``two_rates``: the rows, in the order they were measured in, may have run at two clock rates.
    """
    table = np.stack(list(named.values()))
    target = np.log(time_us / base_us)
    kept = ~left_out
    if two_rates:
        trees = at_one_rate(table[:, kept], target[kept], settings)
    else:
        trees = _towards_median(table[:, kept], target[kept], settings, rounds)
    predicted = base_us * np.exp(trees.predict(table.astype(np.float32)))
    judged = left_out if left_out.any() else kept
    errors = np.log(predicted[judged] / time_us[judged])
    return Residual(
        family=family,
        variant=variant,
        gpu=spec.name,
        architecture=spec.architecture,
        sms=spec.sms,
        columns=tuple(named),
        low=tuple(float(v) for v in table[:, kept].min(axis=1)),
        high=tuple(float(v) for v in table[:, kept].max(axis=1)),
        spread=round(max(ninety_percent(errors), LEAST_SPREAD), 4),
        rows=int(kept.sum()),
        gmae=round(gmae(predicted[judged], time_us[judged]), 5),
        source=source,
        trees=trees,
    )


def _towards_median(table: FloatArray, target: FloatArray, settings: Settings, rounds: int) -> ObliviousTrees:
    weight = np.ones(len(target))
    trees = boost(table, target, settings, weight)
    for _ in range(rounds - 1):
        weight = 1 / np.maximum(np.abs(target - trees.predict(table.astype(np.float32))), LEAST_ERROR)
        trees = boost(table, target, settings, weight / weight.mean())
    return trees


def ninety_percent(errors: FloatArray) -> float:
    """The standard deviation of a normal distribution whose 90 % interval holds 90 % of these errors."""
    return float(np.quantile(np.abs(errors), 0.90) / 1.645)
