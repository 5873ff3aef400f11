"""The launch floor of event-timed products: the host's time for one kernel, and for two where k is split."""

from __future__ import annotations

import numpy as np

from lab.fit.kernels.anchors import small_gemm_us
from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import EventPath, output_tiles
from stepsight.kernels.machine import Machine

CLEAR_OF_FLOOR = 1.15
"""Rows whose reading is less than this times the launch floor show the host, not the kernel."""
LAUNCHED_AT = 0.5
"""Where in a GEMM operator's host time its kernel is launched: readings of the V100 linear table
exceed the kernels of like shape in the V100 kernel lists by 20–50 µs, its floor is 65 µs."""
HIDDEN = 0.40
"""Products whose time from first principles is below this share of the floor show the host alone."""
MOST = 1.3
"""Readings above this times the floor are no launch, whatever first principles say."""
FEWEST = 100
DEPTHS = np.array([50.0, 80, 120, 160, 200, 250, 300, 350, 400, 500, 600, 800, 1000])
SLOPES = np.array([0.0, 200, 400, 600, 900, 1200, 1600, 2200, 3000, 4000])
"""Tried limits of k from which a product is split: with no output tile, and more per tile and
multiprocessor."""


def launch_path(batch: Batch, time_us: FloatArray, machine: Machine, *, splits: bool) -> EventPath:
    """The event path of a table of products, read off those too short to show.

    ``splits``: the library splits them along k, which it does not do with batched ones.
    """
    floor = launch_floor(time_us)
    added = LAUNCHED_AT * floor
    hidden = (small_gemm_us(batch, machine) < HIDDEN * floor) & (time_us < MOST * floor)
    if not splits or hidden.sum() < FEWEST:
        return EventPath(added_us=added, floor_us=floor)
    dims = {key: column[hidden] for key, column in batch.dims.items()}
    reading = np.log(time_us[hidden])
    once = float(np.median(reading))
    best = (float(np.abs(reading - once).sum()), EventPath(added_us=added, floor_us=float(np.exp(once))))
    blocks = output_tiles(dims) / machine.sms
    for depth in DEPTHS:
        for slope in SLOPES:
            split = dims["k"] > depth + slope * blocks
            if min(split.sum(), (~split).sum()) < FEWEST / 4:
                continue
            one, two = float(np.median(reading[~split])), float(np.median(reading[split]))
            error = float(np.abs(reading - np.where(split, two, one)).sum())
            if two > one and error < best[0]:
                second = float(np.exp(two) - np.exp(one))
                best = (error, EventPath(added, float(np.exp(one)), 1.0, second, float(depth), float(slope)))
    return best[1]


def launch_floor(time_us: FloatArray) -> float:
    """What readings no kernel shows in crowd around: those near the fastest per cent."""
    least = float(np.quantile(time_us, 0.01))
    return float(np.median(time_us[time_us < CLEAR_OF_FLOOR * least]))
