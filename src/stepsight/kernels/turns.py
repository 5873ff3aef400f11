"""Many kernels in turns of alike ones: what all kernels of a turn have in common is worked out once.

Boosted trees ask whether a size lies above a threshold. For kernels of a narrow range of sizes most of these
questions have one answer (`learned.trees`), and their columns stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from stepsight.estimate import FloatArray, IntArray

LOOKED_AT = 256
"""Kernels by which the size that varies most is found."""


def turns(dims: Mapping[str, FloatArray], n: int, most: int) -> Iterator[IntArray]:
    """Positions of ``n`` kernels, at most ``most`` at a time: halves by the size that varies most."""
    if dims:
        yield from _halves(np.arange(n), dims, most)
    else:  # a family of which no size is known
        yield from np.split(np.arange(n), range(most, n, most))


def _halves(rows: IntArray, dims: Mapping[str, FloatArray], most: int) -> Iterator[IntArray]:
    """Rows stay in order, so that memory is read and written in one direction."""
    if len(rows) <= most:
        yield rows
        return
    looked_at = rows[:: max(1, len(rows) // LOOKED_AT)]
    widest = max(dims, key=lambda key: float(np.std(np.log1p(dims[key][looked_at]))))
    sizes, middle = dims[widest][rows], len(rows) // 2
    below = sizes < np.partition(sizes, middle)[middle]
    if not most // 2 < below.sum() < len(rows) - most // 2:  # kernels alike in every size
        below = np.arange(len(rows)) < middle
    for half in (rows[below], rows[~below]):
        yield from _halves(half, dims, most)
