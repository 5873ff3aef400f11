"""What one rank's memory must hold, against what its GPU has: the one definition of "fits"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_SPREAD = 0.08
"""Spread of memory by our count around what 640 runs of ten groups reported."""
FITS = 0.5
"""A job fits where that is at least as likely as not: where its need, by our count, is within what is usable.
Searches recommend only what is surer."""


def fit_probability(needed_bytes: float, usable_bytes: float) -> float:
    """How likely so many bytes, by our count, fit into what is usable."""
    if needed_bytes <= 0:
        return 1.0
    return 0.5 * (1 + math.erf(math.log(usable_bytes / needed_bytes) / MEMORY_SPREAD / math.sqrt(2)))


def fits(needed_bytes: float, usable_bytes: float) -> bool:
    """Whether so many bytes more likely than not fit into what is usable."""
    return fit_probability(needed_bytes, usable_bytes) >= FITS


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What one rank's memory holds, in bytes, against what a job can use of its GPU.

    ``reclaimable_bytes`` lie in the allocator, too, which gives them back where memory is short: they do not
    count. ``peak_active_bytes`` and ``peak_reserved_bytes`` are those of torch's caching allocator, where
    they were followed; ``at`` names the operator at the active peak.
    """

    parts_bytes: Mapping[str, float]
    usable_bytes: float
    rank: int = 0
    peak_active_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    at: str = ""
    reclaimable_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return sum(self.parts_bytes.values())

    @property
    def fit_probability(self) -> float:
        return fit_probability(self.total_bytes, self.usable_bytes)

    @property
    def fits(self) -> bool:
        return fits(self.total_bytes, self.usable_bytes)

    @property
    def excess_bytes(self) -> float:
        """By how much it does not fit; zero where it does."""
        return 0.0 if self.fits else self.total_bytes - self.usable_bytes
