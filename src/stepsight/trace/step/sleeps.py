"""Pauses that a program makes on purpose: part of what it does, not what its operators cost.

A sleep shows as a long gap before the same operator of every step, always of the same
length. Stalls and data loaders never repeat that exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepsight.trace.rules import RULES
from stepsight.trace.step.host_times import Place, places_of
from stepsight.trace.step.program import StepProgram

SHORTEST_SLEEP_US = RULES.value("shortest_sleep")
_EVEN = RULES.value("even_sleeps")


def sleeps(steps: Sequence[StepProgram]) -> dict[Place, float]:
    """The pauses in µs that every one of a rank's steps makes, by the place of the operator behind them.

    One step alone cannot tell a sleep from a stall.
    """
    gaps: dict[Place, list[float]] = defaultdict(list)
    for step in steps:
        for traced, place in zip(step.ops, places_of(step), strict=True):
            times = traced.op.overhead_us
            if times is not None and times.t1 >= SHORTEST_SLEEP_US:
                gaps[place].append(times.t1)
    return {
        place: min(found)
        for place, found in gaps.items()
        if len(found) == len(steps) > 1 and max(found) <= (1 + _EVEN) * min(found)
    }
