"""A workload's own tables as they were measured before any plan is priced (calibrate/own_tables.py).

A calibrated model knows tables in general and the machine as it was. Where tables can be looked up
here and now, each is: whole, with half of its columns, and with half of its rows. What the model
says of a part is then scaled by what was seen. No plan is run for this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import ContentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTables:
    """ln(measured / model) of every table: tables × parts (whole, half columns, half rows) × phases.

    ``beside_others`` is how many times longer lookups and updates take while all ranks are at them,
    ``jitter`` how much a rank's time for them varies from turn to turn (standard deviation of ln).
    """

    log_ratio: FloatArray
    beside_others: tuple[float, float] = (1.0, 1.0)
    jitter: float = 0.0

    def contention(self, calibrated: ContentionSpec) -> ContentionSpec:
        """The platform's slowdowns with those of lookups as they are here and now."""
        forward, backward = self.beside_others
        return replace(calibrated, lookups_forward=forward, lookups_backward=backward)

    def factors(self, table: int, columns: float, rows: float) -> FloatArray:
        """Forward and backward factor of a part that holds these shares of a table's columns and rows.

        Between a whole and a half on a log scale; smaller parts are like halves.
        """
        whole, half_columns, half_rows = self.log_ratio[table]
        narrow, short = (float(np.clip(-np.log2(share), 0.0, 1.0)) for share in (columns, rows))
        log = whole + narrow * (half_columns - whole) + short * (half_rows - whole)
        return np.asarray(np.exp(log))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def straggling_us(times_us: FloatArray, jitter: float) -> FloatArray:
    """How much longer the longest of these times is on average than the longest on paper.

    The last axis are the ranks. Each rank's time varies by a standard deviation of ``jitter`` times
    itself, apart from the others. Two at a time, as if the longer of two were normal too
    (C. E. Clark, Operations Research 9, 1961: exact for two ranks).
    """
    if jitter <= 0.0 or times_us.shape[-1] < 2:
        return np.zeros(times_us.shape[:-1])
    ordered = np.sort(times_us, axis=-1)
    mean, variance = ordered[..., -1], (jitter * ordered[..., -1]) ** 2
    for other in np.moveaxis(ordered[..., -2::-1], -1, 0):
        mean, variance = _longer(mean, variance, other, (jitter * other) ** 2)
    return np.asarray(mean - ordered[..., -1])


def _longer(a: FloatArray, a2: FloatArray, b: FloatArray, b2: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the longer of two normal times, given by theirs."""
    spread = np.sqrt(np.maximum(a2 + b2, np.finfo(np.float64).tiny))
    apart = (a - b) / spread
    first = 0.5 * (1 + _erf(apart / math.sqrt(2)))
    density = np.exp(-0.5 * apart**2) / math.sqrt(2 * math.pi)
    mean = a * first + b * (1 - first) + spread * density
    square = (a**2 + a2) * first + (b**2 + b2) * (1 - first) + (a + b) * spread * density
    return mean, np.maximum(square - mean**2, 0.0)
