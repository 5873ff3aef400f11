"""A time, where it came from, and how sure it is.

Nothing in stepsight hands on a bare number of microseconds: a time travels with its
source and its spread, so that a prediction can say how much of it comes from what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MAD_TO_SD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


class Source(IntEnum):
    """Where a time came from, best first."""

    TRACE = 0
    """The duration seen in the user's own trace (replay)."""
    MEASURED = 1
    """Interpolated on a measured curve of this very hardware."""
    LEARNED = 2
    """A model fitted on measurements of this GPU."""
    TRANSFERRED = 3
    """A model fitted on a relative, carried over by the specification."""
    ROOFLINE = 4
    """Speed of light times a stated efficiency; without a measurement."""
    DEFAULT = 5
    """Nothing is known about this operation: a stated default."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Estimate:
    """One time in microseconds with its source and spread.

    ``spread`` is the standard deviation of ln(time): 0.05 means about ±5 %.
    ``note`` says what a reader must know (for example "extrapolated in size").
    """

    time_us: float
    source: Source
    spread: float
    note: str = ""

    @property
    def low_us(self) -> float:
        return float(self.time_us * np.exp(-self.spread))

    @property
    def high_us(self) -> float:
        return float(self.time_us * np.exp(self.spread))


@dataclass(frozen=True, slots=True)
class Estimates:
    """Many estimates as columns: what the models answer with.

    All arrays have the same length; ``source`` holds `Source` values; ``notes`` maps a
    position to what must be stated about it and is empty for most.
    """

    time_us: FloatArray
    source: IntArray
    spread: FloatArray
    notes: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.time_us)

    def __getitem__(self, i: int) -> Estimate:
        return Estimate(
            float(self.time_us[i]), Source(int(self.source[i])), float(self.spread[i]), self.notes.get(i, "")
        )

    @classmethod
    def uniform(cls, time_us: FloatArray, source: Source, spread: float, note: str = "") -> Estimates:
        """The same source, spread and note for every time."""
        n = len(time_us)
        return cls(
            np.asarray(time_us, dtype=np.float64),
            np.full(n, int(source), dtype=np.int64),
            np.full(n, spread),
            dict.fromkeys(range(n), note) if note else {},
        )
