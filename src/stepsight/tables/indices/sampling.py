"""Draw the lookups of a batch from a distribution, for benchmarks and real runs."""

from __future__ import annotations

from math import gcd

import numpy as np

from stepsight.estimate import IntArray
from stepsight.tables.indices.distributions import IndexDistribution

_SPREAD = 0.6180339887498949
"""Popular rows are spread over the table by a step of the golden ratio times its rows."""


def draw_indices(
    distribution: IndexDistribution, rows: int, lookups: int, rng: np.random.Generator
) -> IntArray:
    """``lookups`` row numbers in time order, independent draws (an index file: a random stretch of it)."""
    if distribution.kind == "file":
        from stepsight.tables.indices.index_files import open_index_file

        stream = open_index_file(distribution.path).table(distribution.table)
        first = int(rng.integers(0, max(stream.lookups - lookups, 0) + 1))
        taken = stream.window(first, lookups)
        return np.resize(taken, lookups).astype(np.int64) % rows
    counts, shares = distribution.popularity(rows)
    first_rank = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    cumulative = np.cumsum(counts * shares)
    group = np.searchsorted(cumulative, rng.random(lookups) * cumulative[-1], side="right")
    group = np.minimum(group, len(counts) - 1)
    rank = first_rank[group] + (rng.random(lookups) * counts[group]).astype(np.int64)
    return np.asarray(rank * _step(rows) % rows)


def _step(rows: int) -> int:
    """A step that visits every row once."""
    step = max(1, int(rows * _SPREAD))
    while gcd(step, rows) != 1:
        step += 1
    return step
