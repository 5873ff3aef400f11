"""What a lookup does on a GPU: per table, quantities whose sums over tables give the fused time.

Every column adds up over tables, so the cost of any subset of them is one matrix product:
a sharding search prices thousands of plans without touching a distribution again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, log2

import numpy as np

from stepsight.dtypes import dtype_bytes
from stepsight.estimate import FloatArray
from stepsight.tables.bags import longest_over_mean
from stepsight.tables.indices.stats import REUSE_BINS, REUSE_EDGES, IndexStats
from stepsight.tables.lookup import SORTED as SORTED_UPDATE
from stepsight.tables.lookup import TableLookup
from stepsight.tables.table import CACHED as IN_A_CACHE
from stepsight.tables.table import DEVICE, SSD, UVM, optimizer_state, row_bytes

INDEX_BYTES = 8
"""torch indices and offsets are int64."""
ACCUMULATE_BYTES = 4
"""Per-sample weights and optimizer state are fp32, whatever the rows are."""

DRAM, L2, LOOKUPS, WARP_BAGS, WARP_LOOKUPS, WARP_MISSES, CHAIN, MISS_CHAIN, WIDEST = range(9)
"""Columns: bytes from memory, bytes through the cache, lookups; in units of a full warp's occupancy bags
(of a sorted backward: rows that a warp updates), lookups and those that no cache serves; the longest bag and
what no cache serves of it, and the widest row (as power sums, see `CHAIN_POWER`, `WIDTH_POWER`)."""
BUS_DOWN, BUS_UP = range(9, 11)
"""Bytes on the wire of the host bus, to the device and from it, of rows that a kernel reads and writes in
host memory (see `bus_bytes`)."""
FILLED, CACHED, PAGES, LONGEST, SOUGHT = range(11, 16)
"""Of a forward: bytes on the wire to bring missing rows into a cache on the device and to write as many back,
lookups whose rows are sought in one, and pages of a drive that are read for it, and as many written; the
longest bag of a batch whose bags differ (`CHAIN` and `MISS_CHAIN` are of one of mean length); and searches of
a cache, one for each distinct row and one for each lookup."""
SCATTERED, HOTTEST, VALUES, TABLE_VALUES = range(11, 15)
"""Of a backward that updates rows one by one: updates of rows in memory that lie outside the reach of the
address translation (see `TRANSLATED_BYTES`), those of every table's most popular row; values that are added,
and values of the tables."""
ROWS, SORTED, UPDATED, LONG_RUNS, BLOCK_RUNS, BLOCK_LOOKUPS, BLOCK_MISSES = range(11, 18)
"""Of a sorted backward, in the same places: rows that indices tell apart, keys that are sorted (each lookup
twice with per-sample weights), those of the bytes from memory that are read to be written back, and runs of
lookups of one row that whole blocks fold (see `WARP_RUN`). Of these in units of a full block's
occupancy: blocks, lookups of each warp of a block, and those that no cache serves."""
FORWARD_COLUMNS, COLUMNS = 16, 18
CONCAVE = (CHAIN, MISS_CHAIN, WIDEST, ROWS, LONG_RUNS)
"""Columns whose first part costs most: roots of power sums (`LONGEST` is in the place of `LONG_RUNS`), passes
of a sort, the first long run."""
CHAIN_POWER = 8.0
"""The longest bag over tables is the 8-norm: it adds up, and lies within 30 % of the maximum for 8 tables."""

WARP_LANES, LANE_VALUES, FEWEST_LANES = 32, 4, 8
"""FBGEMM gives a bag one lane per four values, at least eight lanes and at most a warp."""
BLOCK_THREADS, FORWARD_THREADS = 1024, 512
"""Threads of a block in the kernels of 2020, and of FBGEMM's forward in traces."""
WARP_RUN, BLOCK_RUN, BLOCK_WARPS = 32, 1024, 32
"""Lookups of one row that FBGEMM's backward leaves to a single warp (max_segment_length_per_warp) and to a
single block (max_segment_length_per_cta), whose warps share them (32 in the launches of traces)."""
_LONG = REUSE_EDGES.index(WARP_RUN) + 1
"""The first bin of `IndexStats.reuse` with rows of more lookups than a warp folds."""
_RUN_LENGTHS = 0.75 * 2.0 ** np.arange(REUSE_BINS)
"""The middle of every bin of `IndexStats.reuse`."""
WIDTH_POWER = 16.0
"""The widest row over tables is the 16-norm: for 100 identical tables 33 % above the maximum. With higher
powers a table that leaves a sum would not leave it clean in double precision."""
REGISTER_DIM = 256
"""Wider rows hold so much in registers that fewer bags fit on an SM. One kernel serves all tables, so the
widest row decides: in traces 75 % of the warps fit with rows of up to 256 values, 50 % with up to 640."""
TRANSLATED_BYTES = 32 * 2**20
"""What an SM's first translation buffer covers on Volta: 16 pages of 2 MB (Jia et al., Dissecting the NVIDIA
Volta GPU Architecture via Microbenchmarking, 2018)."""

PACKET_BYTES, HEADER_BYTES = 128, 24
"""A load or store of a warp crosses PCIe as packets of at most a 128-byte line; header, framing and checksum
take 20 to 24 bytes of each, and a request for a line is a packet without data (PCI Express Base
Specification, transaction and data link layers)."""
PAGE_BYTES = 4096
"""What a drive reads and writes at a time."""
HISTORY = 100.0
"""Lookups over which a cache's contents are taken, in rows of the table: long enough that it is full of the
rows that stay, and that rare ones have been asked for and dropped again."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """The cache as one table of a fused kernel sees it.

    ``cache_bytes`` is what rows can use of it. A fused kernel walks table by table, with
    ``resident_bags`` bags at work at any time: tables whose whole batch is smaller share it.
    Before it, each of the ``processors`` has ``near_bytes`` of its own for the rows of its bags.
    A forward has at most ``grid_blocks`` blocks, whose warps take bag after bag.
    """

    cache_bytes: float
    sector_bytes: int
    resident_bags: float
    near_bytes: float = 0.0
    processors: int = 1
    grid_blocks: float = inf

    def share(self, batch: int, tables: int) -> float:
        """Bytes of cache for one table's rows when ``tables`` tables run in one kernel."""
        together = min(max(self.resident_bags / max(batch, 1), 1.0), max(tables, 1))
        return self.cache_bytes / together

    def near_hits(self, table: TableLookup, stats: IndexStats, row: float) -> float:
        """Share of a forward's lookups that an SM's own cache serves."""
        if not self.near_bytes:
            return 0.0
        blocks = ceil(table.batch * _lanes(table) / BLOCK_THREADS)
        return stats.share_hit_rate(self.near_bytes / row, stats.lookups / min(self.processors, blocks))

    def sectors(self, bytes_: float) -> float:
        """Whole sectors, in bytes."""
        return float(ceil(bytes_ / self.sector_bytes) * self.sector_bytes)


def forward_columns(
    tables: Sequence[TableLookup], cache: CacheView, *, together: int, replayed: bool = False,
    pooled_dtype: str = "",
) -> FloatArray:  # fmt: skip
    """Columns of the forward lookup: one row per table. ``pooled_dtype``: of the output, if not the rows'."""
    out = np.zeros((len(tables), FORWARD_COLUMNS))
    for i, table in enumerate(tables):
        if not table.batch:
            continue
        stats = table.indices.stats(table.rows, table.lookups)
        row = cache.sectors(row_bytes(table.dtype, table.dim))
        streamed = _streamed_bytes(table, pooled_dtype)
        if table.placement == UVM:
            # The L2 holds lines of the device's own memory: only an SM's cache serves a row again.
            far = table.lookups * (1 - cache.near_hits(table, stats, row))
            out[i, BUS_DOWN], out[i, BUS_UP] = far * bus_bytes(row), far * request_bytes(row)
            out[i, DRAM] = out[i, L2] = streamed
            _count(out[i], table, 0.0)
            _hold(out[i], table, cache, together)
            continue
        if table.placement in IN_A_CACHE:
            fetched = missing_rows(table)
            # A full cache writes a changed row back for each that comes.
            out[i, FILLED] = fetched * (bus_bytes(row) + request_bytes(row))
            out[i, CACHED] = table.lookups
            out[i, SOUGHT] = table.lookups + stats.unique_rows
            out[i, PAGES] = fetched * np.ceil(row / PAGE_BYTES) * (table.placement == SSD)
        # What is streamed through the cache takes its place there next to the rows.
        room = cache.share(table.batch, together) * table.lookups * row / (table.lookups * row + streamed)
        hit = _hit_rate(stats, room / row / window(table), replayed)
        out[i, DRAM] = table.lookups * row * (1 - hit) + streamed
        out[i, L2] = table.lookups * row * (1 - cache.near_hits(table, stats, row)) + streamed
        _count(out[i], table, 1 - hit)
        _hold(out[i], table, cache, together)
    return out


def backward_columns(
    tables: Sequence[TableLookup], cache: CacheView, *, together: int, optimizer: str,
    update: str = SORTED_UPDATE, replayed: bool = False, pooled_dtype: str = "",
) -> FloatArray:  # fmt: skip
    """Columns of the backward with its fused update: one row per table. ``pooled_dtype``: of the gradient."""
    per_element, per_row = optimizer_state(optimizer)
    out = np.zeros((len(tables), COLUMNS))
    for i, table in enumerate(tables):
        stats = table.indices.stats(table.rows, table.lookups)
        row = cache.sectors(row_bytes(table.dtype, table.dim))
        share = cache.share(table.batch, together)
        state = cache.sectors(per_element * table.dim * ACCUMULATE_BYTES)
        state += cache.sectors(per_row * ACCUMULATE_BYTES)
        streamed = _streamed_bytes(table, pooled_dtype)
        if update == SORTED_UPDATE:
            # Lookups of one row lie together; their gradients come from all over the batch.
            grad = cache.sectors(table.dim * (dtype_bytes(pooled_dtype) if pooled_dtype else 4))
            missed = np.clip(1 - share / max(grad * table.batch, 1.0), 0.0, 1.0)
            grads = max(table.lookups * missed - table.batch, 0.0) * grad
            on_device = {DEVICE: row + state, UVM: 0.0}.get(table.placement, row)
            updated = stats.unique_rows * 2 * on_device
            for part in (row if table.placement == UVM else 0.0, state if table.placement != DEVICE else 0.0):
                out[i, BUS_DOWN] += stats.unique_rows * bus_bytes(part)
                out[i, BUS_UP] += stats.unique_rows * (bus_bytes(part) + request_bytes(part))
            out[i, DRAM] = updated + grads + streamed
            out[i, UPDATED] = updated
            out[i, L2] = updated + table.lookups * grad + streamed
            _count(out[i], table, float(missed))
            # A warp numbers 32 bags one after the other, of which one may be long.
            longest = longest_over_mean(table.bag_spread, table.batch)
            out[i, CHAIN] *= (1 + (longest - 1) / WARP_LANES) ** CHAIN_POWER
            _runs(out[i], table, stats, float(missed))
        else:
            hit = _hit_rate(stats, share / (row + state) / window(table), replayed)
            touched = table.lookups * 2 * (row + state)
            out[i, DRAM] = touched * (1 - hit) + streamed
            out[i, L2] = touched + streamed
            spread_over = window(table) * table.rows * row
            out[i, SCATTERED] = table.lookups * (1 - hit) * max(1 - TRANSLATED_BYTES / spread_over, 0.0)
            out[i, HOTTEST] = stats.hottest
            out[i, VALUES] = table.lookups * table.dim
            out[i, TABLE_VALUES] = table.rows * table.dim
            _count(out[i], table, 1 - hit)
    return out


def window(table: TableLookup) -> float:
    """Share of the table that is looked up at a time: all of it, unless bags list their rows in order.

    Bags then walk the table side by side: the l-th of L ordered uniform draws has a variance of
    p(1 − p)/(L + 2) at p = l/(L + 1), on average over l as a window of this width has.
    """
    return float(np.sqrt(2 / (table.pooling + 1))) if table.indices.ordered and table.pooling > 1 else 1.0


def bus_bytes(moved: float) -> float:
    """Bytes on the wire of one access: the data and the headers of its packets."""
    return moved + request_bytes(moved)


def request_bytes(moved: float) -> float:
    """Bytes on the wire of the requests for one access."""
    return float(ceil(moved / PACKET_BYTES) * HEADER_BYTES)


def missing_rows(table: TableLookup) -> float:
    """Distinct rows of a batch that a cache of ``cache_share`` of the table does not hold."""
    long = table.indices.stats(table.rows, max(table.lookups, HISTORY * table.rows))
    return min(
        long.missing_rows(table.cache_share * table.rows, table.lookups),
        table.indices.stats(table.rows, table.lookups).unique_rows,
    )


def _hit_rate(stats: IndexStats, capacity_rows: float, replayed: bool) -> float:
    return float(stats.hit_rate(capacity_rows, replay=replayed))


def _streamed_bytes(table: TableLookup, pooled_dtype: str) -> float:
    """Indices, per-sample weights, offsets and the output (or its gradient): touched once."""
    per_lookup = INDEX_BYTES + (ACCUMULATE_BYTES if table.weighted else 0)
    pooled = table.dim * dtype_bytes(pooled_dtype) if pooled_dtype else row_bytes(table.dtype, table.dim)
    return table.lookups * per_lookup + table.batch * (INDEX_BYTES + pooled)


def _count(out: FloatArray, table: TableLookup, missed: float) -> None:
    warps = _warps(table)
    out[LOOKUPS] = table.lookups
    out[WARP_BAGS] = table.batch * warps
    out[WARP_LOOKUPS] = table.lookups * warps
    out[WARP_MISSES] = table.lookups * warps * missed
    out[CHAIN] = table.pooling**CHAIN_POWER
    out[MISS_CHAIN] = (table.pooling * missed) ** CHAIN_POWER
    out[WIDEST] = float(table.dim) ** WIDTH_POWER


def _runs(out: FloatArray, table: TableLookup, stats: IndexStats, missed: float) -> None:
    """A sorted backward works run by run: all lookups of one row, a short one by a warp, a long one by the
    warps of a block of its own."""
    warps, (short, long, blocks, share) = _warps(table), _runs_of(stats)
    by_blocks = table.lookups * share
    out[WARP_BAGS] = short * warps
    out[WARP_LOOKUPS] = (table.lookups - by_blocks) * warps
    out[WARP_MISSES] = out[WARP_LOOKUPS] * missed
    out[LONG_RUNS] = long
    out[BLOCK_RUNS] = blocks * warps
    out[BLOCK_LOOKUPS] = by_blocks / BLOCK_WARPS * warps
    out[BLOCK_MISSES] = out[BLOCK_LOOKUPS] * missed
    out[ROWS] = table.rows
    out[SORTED] = table.lookups * (2 if table.weighted else 1)


@lru_cache(maxsize=4096)
def _runs_of(stats: IndexStats) -> tuple[float, float, float, float]:
    """Short runs, long ones, the blocks that these take, and their share of the lookups."""
    runs = stats.reuse * stats.unique_rows
    lengths = np.append(_RUN_LENGTHS[:-1], max(_RUN_LENGTHS[-1], stats.hottest))
    blocks = float(runs[_LONG:] @ np.maximum(lengths[_LONG:] / BLOCK_RUN, 1.0))
    share = float(runs[_LONG:] @ lengths[_LONG:]) / max(float(runs @ lengths), 1e-9)
    return float(runs[:_LONG].sum()), float(runs[_LONG:].sum()), blocks, share


def rows_by_blocks(stats: IndexStats) -> float:
    """Share of the distinct rows that have more lookups than a warp folds."""
    return float(stats.reuse[_LONG:].sum())


def _warps(table: TableLookup) -> float:
    """The lanes of a bag or a run, in full warps."""
    return _lanes(table) / WARP_LANES


def _hold(out: FloatArray, table: TableLookup, cache: CacheView, together: int) -> None:
    """Bags of different length: a block's places stay taken until the last of its warps is done, each of
    which takes several bags of a large batch in turn; and the kernel may wait for the batch's longest."""
    in_block = min(int(FORWARD_THREADS / _lanes(table)), table.batch)
    turns = max(table.batch * together / (in_block * cache.grid_blocks), 1.0)
    summed = float(np.sqrt(np.log1p(np.expm1(table.bag_spread**2) / turns)))
    out[WARP_LOOKUPS : WARP_MISSES + 1] *= longest_over_mean(summed, in_block)
    out[LONGEST] = (table.pooling * longest_over_mean(table.bag_spread, table.batch)) ** CHAIN_POWER


def _lanes(table: TableLookup) -> float:
    return min(max(2.0 ** ceil(log2(table.dim / LANE_VALUES)), FEWEST_LANES), WARP_LANES)
