"""An index file in figures: per table, what a report, a script or a plot needs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepsight.tables.indices.index_files import TableStream
from stepsight.tables.indices.reuse import exact_stats
from stepsight.tables.indices.stats import REUSE_EDGES

CURVE_POINTS = 24
"""Cache sizes at which the hit rate is stated, spread from one row to all of them."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """One table of an index file (or one batch of it).

    ``pooling`` are the least, median, 95th percentile and largest bag; ``reuse`` the shares of
    distinct rows in the 17 bins; ``hit_rate`` is that of a cache of ``cache_rows`` rows.
    """

    table: int
    bags: int
    lookups: int
    mean_pooling: float
    pooling: tuple[float, float, float, float]
    unique_rows: int
    largest_row: int
    mean_reuse: float
    reuse: tuple[float, ...]
    cache_rows: tuple[float, ...]
    hit_rate: tuple[float, ...]


def summarise(table: int, stream: TableStream) -> TableSummary:
    """Exact statistics of all lookups of one table."""
    stats = exact_stats(stream.chunks, stream.lookups)
    cache_rows = np.geomspace(1, max(stats.unique_rows, 2), CURVE_POINTS)
    least, median, high, most = (float(v) for v in stream.pooling_quantiles())
    return TableSummary(
        table=table,
        bags=stream.bags,
        lookups=stream.lookups,
        mean_pooling=stream.pooling,
        pooling=(least, median, high, most),
        unique_rows=int(stats.unique_rows),
        largest_row=int(max(chunk.max() for chunk in stream.chunks())),
        mean_reuse=stats.mean_reuse,
        reuse=tuple(stats.reuse.tolist()),
        cache_rows=tuple(cache_rows.tolist()),
        hit_rate=tuple(stats.hit_rate(cache_rows).tolist()),
    )


def reuse_labels() -> list[str]:
    """The 17 bins in words: 1, 2, 3–4, …"""
    labels = ["1", "2"]
    labels += [f"{low + 1}–{high}" for low, high in pairwise(REUSE_EDGES[1:])]
    return [*labels, f"> {REUSE_EDGES[-1]}"]
