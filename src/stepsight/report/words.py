"""Sentences that more than one report uses."""

from __future__ import annotations

from collections.abc import Mapping

from stepsight.estimate import Source
from stepsight.prediction.categories import source_look
from stepsight.prediction.compare import Comparison
from stepsight.prediction.units import share, time

SAME = 0.0005
"""Step times that differ by less than this share are the same."""


def comparison_sentence(c: Comparison) -> str:
    """Which is faster, by what factor and by how much time."""
    if abs(c.after.step_us - c.before.step_us) <= SAME * c.before.step_us:
        return "A and B take the same time."
    by = time(abs(c.difference_us))
    if c.speedup >= 1:
        return f"B is {c.speedup:.2f}× faster than A: {by} less a step."
    return f"B is {1 / c.speedup:.2f}× slower than A: {by} more a step."


def sources_sentence(shares: Mapping[str, float]) -> str:
    """What the times of a prediction come from, best source first."""
    order = [source.label for source in Source]
    known = sorted(shares.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    said = [f"{share(part)} from {source_look(name).word}" for name, part in known if part > 0]
    return f"device time: {', '.join(said)}" if said else "no kernel ran, so nothing was estimated"
