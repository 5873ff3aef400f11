"""Small fp32 GEMMs, which the event-timed tables cannot show: times from first principles.

Below about 60 µs those tables read the launch path. Without guidance the trees would carry the
efficiency of the smallest visible kernel downwards; these shapes tie them to physics instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import light_us
from stepsight.kernels.machine import Machine

START_US = 3.0
PER_K_US = 0.010
"""A thread block walks the whole of k: 3–5 µs at k = 16, 6–12 µs at k = 256–512, 19–25 µs at
k = 1000–2048 for single-wave fp32 GEMMs on V100 (trace_kernels.parquet, v100_addmm_small.csv)."""
SPLIT_K = 1200.0
"""Beyond about this depth the library splits k over more thread blocks."""
ARITHMETIC = 0.5
"""Share of peak that small tiles reach: 0.50–0.56 for 27–68 µs GEMMs of the V100 DLRM lists."""
COUNT = 500


@dataclass(frozen=True, slots=True)
class Anchors:
    """Shapes below the reach of the measurement, with times from first principles."""

    batch: Batch
    time_us: FloatArray


def small_gemm_us(batch: Batch, machine: Machine) -> FloatArray:
    """The time of a GEMM too small to be seen above the launch path."""
    depth = np.minimum(batch.dims["k"], SPLIT_K)
    return START_US + PER_K_US * depth + light_us(batch, machine) / ARITHMETIC


def gemm_anchors(
    machine: Machine, floor_us: float, batched: bool, seed: int, most: Mapping[str, float] | None = None
) -> Anchors:
    """Random small shapes whose time lies well below the measurement floor.

    ``most``: the largest measured sizes. Beyond them these shapes would be all that the trees know, and
    large products with such a size would be timed as small ones.
    """
    limits = {"m": 1024.0, "n": 1024.0, "k": 2048.0, "batch": 128.0}
    limits = {key: min(high, (most or {}).get(key, high)) for key, high in limits.items()}
    rng = np.random.default_rng(seed)
    draw = 8 * COUNT

    def sizes(high: float) -> np.typing.NDArray[np.float64]:
        return np.floor(np.exp(rng.uniform(0.0, np.log(high), draw)))

    dims = {key: sizes(limits[key]) for key in ("m", "n", "k")}
    dims["batch"] = sizes(limits["batch"]) if batched else np.ones(draw)
    batch = Batch.of("gemm", "fp32", dims)
    time_us = small_gemm_us(batch, machine)
    small = np.nonzero(time_us < 0.5 * floor_us)[0][:COUNT]
    return Anchors(batch.take(small), time_us[small])
