"""The statistic by which repeated times are read, the same for calibration and for measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepsight.calibrate.constants import STEP_QUANTILE

CANDIDATES = {"median": 0.5, "lower quartile": 0.25, "first decile": 0.1, "minimum": 0.0}
"""What repeatability is compared for; the number is the quantile."""


def typical_us(times: Sequence[Sequence[float]]) -> float:
    """The median over all ranks and repeats: what `stepsight run` reports for steps, too."""
    return float(np.median([t for of_rank in times for t in of_rank]))


def step_us(blocks: Sequence[Sequence[float]]) -> float:
    """The time of a step from the timed steps of its interleaved blocks."""
    return float(np.quantile([t for block in blocks for t in block], STEP_QUANTILE))


def pace_and_step(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[float, float]:
    """How the logarithms of the machine's pace and of a workload's step changed from one pass to another."""
    pace = np.log(last["pace_us"] / first["pace_us"])
    return float(pace), float(np.log(step_us(last["steps_us"]) / step_us(first["steps_us"])))


def repeat_error(passes: Sequence[Sequence[float]], quantile: float) -> float:
    """How far one pass lies from another by this statistic: mean |ln ratio| of all pairs of passes."""
    values = [np.log(np.quantile(p, quantile)) for p in passes]
    pairs = [abs(a - b) for i, a in enumerate(values) for b in values[i + 1 :]]
    return float(np.mean(pairs)) if pairs else 0.0


def halves(times: Sequence[float]) -> list[list[float]]:
    """Two interleaved passes out of one: the even and the odd repeats."""
    return [list(times[0::2]), list(times[1::2])]
