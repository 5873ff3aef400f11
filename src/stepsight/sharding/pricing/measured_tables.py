"""A workload's own tables as they were measured before any plan is priced (calibrate/own_tables.py).

A calibrated model knows tables in general and the machine as it was. Where tables can be looked up
here and now, each is: whole, with half of its columns, and with half of its rows. What the model
says of a part is then scaled by what was seen. No plan is run for this.
"""

from __future__ import annotations

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
