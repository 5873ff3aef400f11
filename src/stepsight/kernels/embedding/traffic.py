"""What a lookup does on a GPU: per table, quantities whose sums over tables give the fused time.

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
"""Per-sample weights and optimizer state are fp32, whatever the rows are."""

DRAM, L2, LOOKUPS, WARP_BAGS, WARP_LOOKUPS, CHAIN, ATOMICS = range(7)
"""Columns: bytes from memory, bytes through the cache, lookups, bags and lookups in units of a
full warp's occupancy, the longest bag (as a power sum, see `CHAIN_POWER`), and scattered
atomic additions in units of those to a 128-wide row in memory."""
COLUMNS = 7
CHAIN_POWER = 8.0
"""The longest bag over tables is the 8-norm: it adds up, and lies within 30 % of the maximum for 8 tables."""

WARP_LANES, LANE_VALUES, FEWEST_LANES = 32, 4, 8
"""FBGEMM gives a bag one lane per four values, at least eight lanes and at most a warp."""
REGISTER_DIM = 256
"""Wider rows hold so much in registers that fewer bags fit on an SM."""
ATOMIC_DIM, ATOMIC_EXPONENT, ATOMIC_IN_CACHE = 128, 0.75, 0.7
"""Scattered additions per element slow down with the width of the row, and are faster on rows that are
in the cache: from batched_embedding_backward_sgd on a V100 (dims 64 and 128)."""

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
        _count(out[i], table)
    return out


def backward_columns(
    tables: Sequence[TableLookup], cache: CacheView, *, together: int, optimizer: str,
    sorted_update: bool = True, replayed: bool = False,
) -> FloatArray:  # fmt: skip
    """Columns of the backward with its fused update: one row per table."""
    per_element, per_row = optimizer_state(optimizer)
    out = np.zeros((len(tables), COLUMNS))
    for i, table in enumerate(tables):
        stats = table.indices.stats(table.rows, table.lookups)
        row = cache.sectors(table.dim * dtype_bytes(table.dtype))
        share = cache.share(table.batch, together)
        state = cache.sectors(per_element * table.dim * ACCUMULATE_BYTES)
        state += cache.sectors(per_row * ACCUMULATE_BYTES)
        streamed = _streamed_bytes(table)
        if sorted_update:
            # Lookups of one row lie together; their gradients come from all over the batch.
            grad = cache.sectors(table.dim * dtype_bytes(table.dtype))
            missed = np.clip(1 - share / max(grad * table.batch, 1.0), 0.0, 1.0)
            grads = max(table.lookups * missed - table.batch, 0.0) * grad
            updated = stats.unique_rows * 2 * (row + state)
            out[i, DRAM] = updated + grads + streamed
            out[i, L2] = updated + table.lookups * grad + streamed
        else:
            hit = _hit_rate(stats, share / (row + state), replayed)
            touched = table.lookups * 2 * (row + state)
            out[i, DRAM] = touched * (1 - hit) + streamed
            out[i, L2] = touched + streamed
            width = (table.dim / ATOMIC_DIM) ** ATOMIC_EXPONENT
            out[i, ATOMICS] = table.lookups * table.dim * width * (1 - hit + ATOMIC_IN_CACHE * hit)
        _count(out[i], table)
    return out


def optimizer_state(optimizer: str) -> tuple[float, float]:
    """fp32 values of state per element and per row of a fused update."""
    if optimizer not in OPTIMIZER_STATE:
        raise StepsightError(f"unknown optimizer {optimizer!r}; one of {', '.join(OPTIMIZER_STATE)}")
    return OPTIMIZER_STATE[optimizer]


def _hit_rate(stats: IndexStats, capacity_rows: float, replayed: bool) -> float:
    return float(stats.hit_rate(capacity_rows, replay=replayed))


def _streamed_bytes(table: TableLookup) -> float:
    """Indices, per-sample weights, offsets and the output (or its gradient): touched once."""
    per_lookup = INDEX_BYTES + (ACCUMULATE_BYTES if table.weighted else 0)
    return table.lookups * per_lookup + table.batch * (INDEX_BYTES + table.dim * dtype_bytes(table.dtype))


def _count(out: FloatArray, table: TableLookup) -> None:
    lanes = min(max(2.0 ** np.ceil(np.log2(table.dim / LANE_VALUES)), FEWEST_LANES), WARP_LANES)
    warps = lanes / WARP_LANES * max(1.0, table.dim / REGISTER_DIM) ** 0.5
    out[LOOKUPS] = table.lookups
    out[WARP_BAGS] = table.batch * warps
    out[WARP_LOOKUPS] = table.lookups * warps
    out[CHAIN] = table.pooling**CHAIN_POWER
