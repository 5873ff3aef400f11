"""What an estimate says about itself, in words that state how much it matters."""

from __future__ import annotations

import math

INTERVAL_SIGMAS = 1.645
"""A 90 % interval in standard deviations of ln(time)."""
WORTH_SAYING = 1.1
"""How much wider an interval must be for a note."""


def either_way(spread: float) -> str:
    """The 90 % interval of a spread: ±12 %."""
    return f"±{math.expm1(INTERVAL_SIGMAS * spread):.0%}".replace("%", " %")


def beyond_shapes(inside: float, outside: float) -> str:
    """Of a kernel larger or smaller than all that its model was fitted on: how much less sure it is.

    ``inside`` is the spread of measured shapes, ``outside`` that of the kernel. Empty where both are equal.
    """
    if outside < WORTH_SAYING * inside:
        return ""
    sure = f"its time is known to {either_way(outside)} instead of {either_way(inside)}"
    return f"larger or smaller than the measured shapes: {sure}"


def joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
