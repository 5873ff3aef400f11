"""Which of equally fast plans to take: even and roomy ones, then those that follow a rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.pricing.loads import Loads
from stepsight.tables.plan import Plan
from stepsight.tables.sharders import knowledge

_CONSTANTS = area("sharding")
SAME_LOAD = _CONSTANTS.number("SAME_LOAD")
TIE = _CONSTANTS.number("TIE")


def level_with(fastest: int, step_us: FloatArray, among: Sequence[int]) -> list[int]:
    """Those of ``among`` that the prediction does not tell from the fastest."""
    return [i for i in among if step_us[i] <= step_us[fastest] * (1 + TIE)]


def preferred(among: Sequence[int], plans: Sequence[Plan], loads: Loads) -> int:
    """The most even lookups, then the least full rank, then the sharder that knows most of the tables."""
    lookup = (loads.forward_us + loads.backward_us).mean(axis=1)
    full = loads.memory_bytes.max(axis=(1, 2))
    least_full = float(full[list(among)].min())

    def merit(i: int) -> tuple[int, int, int, int]:
        uneven = _above(float(lookup[i].max()), float(lookup[i].mean()))
        return uneven, _above(float(full[i]), least_full), knowledge(plans[i].sharder), i

    return min(among, key=merit)


def _above(value: float, least: float) -> int:
    """How far a value lies above the least it could be, in steps that count as different."""
    return int(np.floor((value / least - 1) / SAME_LOAD + 1e-9)) if least > 0 else 0
