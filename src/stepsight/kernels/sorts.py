"""Radix sorts.

A radix sort: one kernel counts the digits of all keys, one adds the counts up, and one moves keys and
positions for every digit of eight bits. A single block sorts what fits into it. Keys of many bits in short
lists take as many starts as digits.
"""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch

ONE_BLOCK_KEYS = 2304
"""Keys that one block sorts: 256 threads with nine keys of eight bytes (cub's code)."""


def passes(batch: Batch) -> FloatArray:
    """Digits of eight bits that are sorted by: those stated, else all of a key."""
    return np.where(batch.dims["passes"] > 0, batch.dims["passes"], batch.element_bytes)


def passes_us(batch: Batch, start_us: float) -> FloatArray:
    """The starts of all passes, none where one block sorts everything."""
    return np.where(batch.dims["elements"] > ONE_BLOCK_KEYS, passes(batch) * start_us, 0.0)
