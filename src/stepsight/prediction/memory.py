"""What one rank's memory must hold, against what its GPU has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_SPREAD = 0.08
"""Spread of memory by our count around what 640 runs of ten groups reported (llm_h100_sweep.csv)."""


def fit_probability(needed_bytes: float, usable_bytes: float) -> float:
    """How likely so many bytes, by our count, fit into what is usable."""
    if needed_bytes <= 0:
        return 1.0
    return 0.5 * (1 + math.erf(math.log(usable_bytes / needed_bytes) / MEMORY_SPREAD / math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What one rank's memory holds, in bytes, against what its GPU has.

    ``peak_active_bytes`` and ``peak_reserved_bytes`` are those of torch's caching allocator, where they
    were followed; ``at`` names the operator at the active peak.
    """

    parts_bytes: Mapping[str, float]
    capacity_bytes: float
    rank: int = 0
    peak_active_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    at: str = ""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts_bytes.values())

    @property
    def excess_bytes(self) -> float:
        """By how much it does not fit; zero where it does."""
        return max(0.0, self.total_bytes - self.capacity_bytes)
