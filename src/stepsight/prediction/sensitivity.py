"""Why the step takes that long: what it would be if one part were free, or wrong by its spread.

All of these questions are configurations of one walk: the same program with some times
scaled, priced side by side on the engine's configuration axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform
from stepsight.prediction.summary import WAITING
from stepsight.simulate.engine import Priced
from stepsight.simulate.timeline import Timeline, step_times
from stepsight.trace.rules import RULES

HOST, EMBEDDING = "host", "embedding"
HOST_SPREAD = 0.2
"""Host overheads of another machine of the same era: shared overheads cost the published
method about 2 points of accuracy at a host share near 10 % (METHOD §2)."""
MOST_NUMBERS = 4_000_000
"""Launch times held at once: bounds memory when many ranks have their own times, and arrays of 32 MB are
reused where larger ones are handed back to the system each time."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one category means for the step.

    ``if_free_us`` is the step time if the category took no time at all; ``step_spread`` how
    far, as a fraction, the step moves when the category is slower by its spread.
    """

    category: str
    if_free_us: float
    step_spread: float


def sensitivities(
    timeline: Timeline, platform: Platform, *, steps: int, host_spread: float = HOST_SPREAD
) -> tuple[Sensitivity, ...]:
    """One entry per category and one for the host, those that matter most first."""
    lanes = timeline.priced.lanes
    names = [*sorted({name for lane in lanes for name in lane.category}), HOST]
    if any(times.late_us is not None for times in timeline.stretched):
        names.append(WAITING)
    questions = [(name, kind) for name in names for kind in ("free", "slow")]
    size = sum(s.device_us.shape[0] * s.device_us.shape[2] for s in timeline.stretched) or 1
    at_once = max(1, min(len(questions) + 1, MOST_NUMBERS // size))
    answers: list[float] = []
    asked = [("", ""), *questions]
    for lo in range(0, len(asked), at_once):
        times = [_scaled(timeline, i, asked[lo : lo + at_once], host_spread) for i in range(len(lanes))]
        answers += step_times(timeline.priced, platform, times, steps=steps).tolist()
    base = answers[0]
    found = [
        Sensitivity(name, answers[1 + 2 * i], abs(answers[2 + 2 * i] / base - 1) if base > 0 else 0.0)
        for i, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda s: s.if_free_us))


def _scaled(timeline: Timeline, lane: int, questions: list[tuple[str, str]], host_spread: float) -> Priced:
    """The lane's times with one configuration a question."""
    priced, stretched = timeline.priced.lanes[lane], timeline.stretched[lane]
    names = np.array(priced.category)
    slow = np.exp(np.average(priced.spread, axis=1, weights=priced.weight))
    device: FloatArray = np.repeat(stretched.device_us, len(questions), axis=1)
    host: FloatArray = np.repeat(stretched.host_us, len(questions), axis=1)
    late = None if stretched.late_us is None else np.repeat(stretched.late_us, len(questions), axis=1)
    for c, (name, kind) in enumerate(questions):
        if name == HOST:
            host[:, c] *= 0.0 if kind == "free" else np.exp(host_spread)
        elif name == WAITING and late is not None:
            late[:, c] *= 0.0 if kind == "free" else np.exp(RULES.value("late_spread"))
        elif name:
            chosen = names == name
            if kind == "free":
                if name == EMBEDDING:
                    device[:, c] -= timeline.kept_off_us[lane][:, 0]
                device[chosen, c] = 0.0
            else:  # what others hold a launch up for does not grow with it
                alone = np.broadcast_to(priced.times.device_us, stretched.device_us.shape)[chosen, 0]
                device[chosen, c] += alone * (slow[chosen, None] - 1)
    return Priced(host, device, late)
