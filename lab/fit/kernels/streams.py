"""Fitting element-wise ops: the slope is the bandwidth they reach, the intercept the event path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.fit.kernels.learn import FIT_DATE, SCORED_ABOVE_US
from lab.fit.kernels.sources import Measured
from stepsight.estimate import FloatArray
from stepsight.kernels.learned.model import EventPath
from stepsight.kernels.machine import Machine
from stepsight.kernels.stream_costs import STREAMS
from stepsight.kernels.streams import Streamed
from stepsight.score import gmae, mape


def fit_streams(measured: Sequence[Measured], machine: Machine) -> Streamed:
    """One GPU's element-wise ops: ``reading = added + start + bytes / (share × bandwidth)``."""
    start = STREAMS["elementwise"].start_us
    share, path = {}, {}
    predicted, truth = [], []
    for part in measured:
        kept = ~part.held_out
        intercept, slope = _line(part.batch.bytes[kept], part.time_us[kept])
        share[part.variant] = round(1e-3 / (slope * machine.memory_gbps), 4)
        path[part.variant] = EventPath(added_us=round(max(intercept - start, 0.0), 3))
        shown = part.held_out & (part.time_us > SCORED_ABOVE_US)
        predicted.append(intercept + slope * part.batch.bytes[shown])
        truth.append(part.time_us[shown])
    p, t = np.concatenate(predicted), np.concatenate(truth)
    rows = int(sum((~part.held_out).sum() for part in measured))
    return Streamed(
        machine=machine,
        share=share,
        path=path,
        spread=float(np.std(np.log(p / t))),
        source=measured[0].source,
        rows=rows,
        date=FIT_DATE,
        gmae=gmae(p, t),
        mape=mape(p, t),
    )


def _line(bytes_: FloatArray, time_us: FloatArray) -> tuple[float, float]:
    """Least squares on the relative error."""
    design = np.stack([np.ones_like(bytes_), bytes_], axis=1) / time_us[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(design, np.ones(len(time_us)), rcond=None)
    return float(intercept), float(slope)
