"""What a lookup moves: per table, the quantities whose sums over tables give the fused time.

Every column adds up over tables, so the cost of any subset of them is one matrix product:
a sharding search prices thousands of plans without touching a distribution again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.lookup import TableLookup
from stepsight.kernels.embedding.stats import IndexStats
from stepsight.workload.program import dtype_bytes

INDEX_BYTES = 8
"""torch indices and offsets are int64."""
ACCUMULATE_BYTES = 4
"""Outputs, their gradients and per-sample weights are fp32, whatever the rows are."""

DRAM, L2, LOOKUPS, BAGS, UNIQUE, CHAIN = range(6)
"""Columns: bytes from memory, bytes through the cache, lookups, warps of work, distinct rows
updated, and the longest bag (as a power sum, see `CHAIN_POWER`)."""
COLUMNS = 6
CHAIN_POWER = 8.0
"""The longest chain over tables is the 8-norm: it adds up, and is within 30 % of the maximum for 8 tables."""

OPTIMIZER_STATE = {
    "none": (0.0, 0.0),
    "sgd": (0.0, 0.0),
    "adagrad": (1.0, 0.0),
    "rowwise_adagrad": (0.0, 1.0),
    "adam": (2.0, 0.0),
}
"""fp32 state of each update: values per element of a row, and values per row."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """The cache as one table of a fused kernel sees it.

    ``cache_bytes`` is what rows can use of it. A fused kernel walks table by table, with
    ``resident_bags`` bags at work at any time: tables whose whole batch is smaller share it.
    """

    cache_bytes: float
    sector_bytes: int
    resident_bags: float

    def share(self, batch: int, tables: int) -> float:
        """Bytes of cache for one table's rows when ``tables`` tables run in one kernel."""
        together = np.clip(self.resident_bags / max(batch, 1), 1.0, max(tables, 1))
        return float(self.cache_bytes / together)

    def sectors(self, bytes_: float) -> float:
        """Whole sectors, in bytes."""
        return float(np.ceil(bytes_ / self.sector_bytes) * self.sector_bytes)


def forward_columns(
    tables: Sequence[TableLookup], cache: CacheView, *, together: int, replayed: bool = False
) -> FloatArray:
    """Columns of the forward lookup: one row per table."""
    out = np.zeros((len(tables), COLUMNS))
    for i, table in enumerate(tables):
        stats = table.indices.stats(table.rows, table.lookups)
        row = cache.sectors(table.dim * dtype_bytes(table.dtype))
        hit = _hit_rate(stats, cache.share(table.batch, together) / row, replayed)
        streamed = _streamed_bytes(table)
        out[i, DRAM] = table.lookups * row * (1 - hit) + streamed
        out[i, L2] = table.lookups * row + streamed
        _count(out[i], table, stats)
    return out


def backward_columns(
    tables: Sequence[TableLookup], cache: CacheView, *, together: int, optimizer: str,
    sorted_update: bool = True, replayed: bool = False,
) -> FloatArray:  # fmt: skip
    """Columns of the backward with its fused update: one row per table."""
    if optimizer not in OPTIMIZER_STATE:
        raise StepsightError(f"unknown optimizer {optimizer!r}; one of {', '.join(OPTIMIZER_STATE)}")
    per_element, per_row = OPTIMIZER_STATE[optimizer]
    out = np.zeros((len(tables), COLUMNS))
    for i, table in enumerate(tables):
        stats = table.indices.stats(table.rows, table.lookups)
        row = cache.sectors(table.dim * dtype_bytes(table.dtype))
        share = cache.share(table.batch, together)
        state = cache.sectors(per_element * table.dim * ACCUMULATE_BYTES)
        state += cache.sectors(per_row * ACCUMULATE_BYTES)
        grad = cache.sectors(table.dim * ACCUMULATE_BYTES)
        streamed = _streamed_bytes(table)
        if sorted_update:
            # Lookups of one row lie together; their gradients come from all over the batch.
            missed = np.clip(1 - share / max(grad * table.batch, 1.0), 0.0, 1.0)
            grads = max(table.lookups * missed, min(table.batch, table.lookups)) * grad
            updated = stats.unique_rows * 2 * (row + state)
            out[i, DRAM] = updated + grads + streamed
            out[i, L2] = updated + table.lookups * grad + streamed
        else:
            hit = _hit_rate(stats, share / (row + state), replayed)
            touched = table.lookups * 2 * (row + state)
            out[i, DRAM] = touched * (1 - hit) + streamed
            out[i, L2] = touched + streamed
        _count(out[i], table, stats)
    return out


def _hit_rate(stats: IndexStats, capacity_rows: float, replayed: bool) -> float:
    return float(stats.hit_rate(capacity_rows, replay=replayed))


def _streamed_bytes(table: TableLookup) -> float:
    """Indices, per-sample weights, offsets and the output (or its gradient): touched once."""
    per_lookup = INDEX_BYTES + (ACCUMULATE_BYTES if table.weighted else 0)
    return table.lookups * per_lookup + table.batch * (INDEX_BYTES + table.dim * ACCUMULATE_BYTES)


def _count(out: FloatArray, table: TableLookup, stats: IndexStats) -> None:
    out[LOOKUPS] = table.lookups
    out[BAGS] = table.batch
    out[UNIQUE] = stats.unique_rows
    out[CHAIN] = table.pooling**CHAIN_POWER
