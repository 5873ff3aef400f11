"""Gradients of lookups whose indices name one row again and again.

torch sorts the indices and cuts every run of equal ones into parts (EmbeddingBackwardKernel.cu). Parts are
summed in parallel, but one thread per row and column then adds up the parts of a run (``sum_and_scatter``):
each addition waits for a load that comes from the L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.roofline import BoolArray, roofline

ROWS_IN_PART = 10
"""``NROWS_PER_THREAD``."""
L2_LATENCY_CLOCKS = area("kernels").number("L2_LATENCY_CLOCKS")
NOTE = "one thread adds up the parts of the longest run"


@dataclass(frozen=True, slots=True)
class LongRuns:
    """Scatters that state their longest run."""

    spec: GpuSpec

    def handles(self, batch: Batch) -> BoolArray:
        known = batch.family == "scatter"
        return np.asarray(batch.dims["run"] > 0) if known else np.zeros(len(batch), dtype=bool)

    def estimate(self, batch: Batch) -> Estimates:
        answer = roofline(batch, self.spec)
        in_turn_us = batch.dims["run"] / ROWS_IN_PART * L2_LATENCY_CLOCKS / self.spec.clock_mhz
        notes = dict.fromkeys(range(len(batch)), NOTE)
        return replace(answer, time_us=answer.time_us + in_turn_us, notes=notes)
