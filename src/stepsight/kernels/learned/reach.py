"""Products with long rows, on GPUs that lose sight of where those rows lie in memory.

A linear layer reads both matrices along k, a few elements of many rows at a time. Rows lie 4·k bytes apart,
so the tiles that run at a time touch pages all over a span of rows × k. A translation buffer holds the
addresses of a number of pages; beyond that, loads wait for a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import Dims
from stepsight.kernels.machine import Machine

TILE = 128
"""Side of the output tiles, one on a multiprocessor at a time; the library counts them along m first."""
SHARING = 2
"""Multiprocessors that look addresses up together."""
REACH_BYTES: Mapping[str, float] = {"pascal": 80 * 2**20}
"""Span whose addresses the buffer holds, where tables show an end to it. Pascal: linear layers of up to 2,048
rows on P100 (fp32 GEMMs) reach 0.65 of peak up to here and 0.3 at ten times as much. V100, T4 and A100
show no such limit."""
WAITING = 2.0
"""How much longer products take when every load waits, in times of the arithmetic (the same rows)."""
SOFTNESS = 0.5
"""Exponent of the span over the reach in the share of loads that find their address (the same rows)."""


def look_up_stretch(batch: Batch, machine: Machine) -> FloatArray:
    """What multiplies the arithmetic of each product for its addresses that are out of reach."""
    reach = REACH_BYTES.get(machine.architecture)
    if reach is None:
        return np.ones(len(batch))
    found = np.minimum(1.0, (reach / span_bytes(batch.dims, batch.element_bytes, machine)) ** SOFTNESS)
    return np.asarray(1 + WAITING * (1 - found))


def span_bytes(d: Dims, element_bytes: FloatArray, machine: Machine) -> FloatArray:
    """From the first to the last byte of the rows that tiles which share a buffer read at a time."""
    m, n, k = (np.maximum(d[key], 1.0) for key in ("m", "n", "k"))
    tiles = machine.sms / SHARING
    left = np.minimum(m, tiles * TILE)
    right = np.minimum(n, np.ceil(tiles / np.ceil(m / TILE)) * TILE)
    return np.asarray((left + right) * k * element_bytes)
