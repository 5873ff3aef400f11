"""What a lookup does on a CPU, in counts that have a cost each, by phase and operator.

``embedding_bag``: torch looks each table up by itself; its backward writes one gradient row per
lookup, sorts the lookups by row and adds up each row's gradients.
``fbgemm``: one call goes table by table. Its backward sorts the lookups of every table by row,
gathers each row's gradients straight from the output's and updates the rows in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepsight.dtypes import dtype_bytes
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.traffic import ACCUMULATE_BYTES
from stepsight.tables.indices.stats import IndexStats
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, TableLookup
from stepsight.tables.table import optimizer_state

LINE_BYTES = 64
"""A cache line of every x86 and most Arm processors."""
SORT_BYTES = 32
"""A lookup in the sort: its row and its position, each in two buffers that take turns."""
PAGE_TABLE_LINE_BYTES, PAGE_TABLE_BYTES = 32 << 10, 2 << 20
"""What a cache line and what a page of page tables map: 8 and 512 pages of 4 KB. Steps leave both cold."""
PREFETCHED_LINES = 8
"""Rows of so many lines and more set the prefetcher off, which then runs past their end: measured on an AMD
EPYC (Zen 4), where updates of scattered rows of 128 values cost more than their share, those of 96 do not."""

TableWork = Callable[[TableLookup, Sequence[float], str], list[float]]


def work(
    tables: Sequence[TableLookup],
    caches: Sequence[float],
    phase: str,
    optimizer: str = "sgd",
    operator: str = EMBEDDING_BAG,
) -> FloatArray:
    """Tables × kinds of work. The kinds differ by phase and operator."""
    if phase == "forward":
        of_table: TableWork = _forward if operator == EMBEDDING_BAG else _fbgemm_forward
    else:
        of_table = _BACKWARD[operator]
    return np.array([of_table(t, caches, optimizer) for t in tables])


def row_bytes(table: TableLookup) -> float:
    """A row in whole cache lines."""
    return float(np.ceil(table.dim * dtype_bytes(table.dtype) / LINE_BYTES) * LINE_BYTES)


def sort_passes(rows: int) -> int:
    """A radix sort looks at a byte of the row's number in each pass."""
    return max(1, -(-max(rows - 1, 1).bit_length() // 8))


def _forward(table: TableLookup, caches: Sequence[float], optimizer: str) -> list[float]:
    lookups, row = _lookups(table), row_bytes(table)
    # Of each level: served by the next one, or by memory.
    missed = lookups * (1 - _stats(table).hit_rate(np.asarray(caches) / row))
    return [*_counts(table), *missed, *(missed * (row / LINE_BYTES))]


def _backward(table: TableLookup, caches: Sequence[float], optimizer: str) -> list[float]:
    stats, lookups, lines = _stats(table), _lookups(table), row_bytes(table) / LINE_BYTES
    per_element, per_row = optimizer_state(optimizer)
    touched = stats.unique_rows * (lines * (1 + per_element) + per_row)
    gathered = [lookups * _beyond(table.lookups * table.dim * 4.0, level) for level in caches]
    sorted_far = [lookups * _beyond(lookups * SORT_BYTES, level) for level in caches[1:]]
    return [
        *_counts(table), lookups * sort_passes(table.rows), stats.unique_rows, touched,
        *gathered, *(lines * far for far in gathered), *sorted_far,
    ]  # fmt: skip


def _fbgemm_forward(table: TableLookup, caches: Sequence[float], optimizer: str) -> list[float]:
    return [*_forward(table, caches, optimizer), _touched(table, row_bytes(table), PAGE_TABLE_LINE_BYTES)]


def _fbgemm_backward(table: TableLookup, caches: Sequence[float], optimizer: str) -> list[float]:
    unique, lookups, row = _stats(table).unique_rows, _lookups(table), row_bytes(table)
    lines, gradients = row / LINE_BYTES, table.batch * row
    alone = unique * (1 - min(unique / table.rows, 1.0))  # rows whose neighbour is not updated
    per_element, per_row = optimizer_state(optimizer)
    state = unique * per_element * lines
    if per_row:
        state += _touched(table, per_row * ACCUMULATE_BYTES, LINE_BYTES)
    # Whether a sorted lookup begins a new row is a branch that half of them make unpredictable.
    guessed = unique * (1 - min(unique / lookups, 1.0))
    return [
        *_counts(table), lookups * sort_passes(table.rows + 1), guessed, table.batch * lines,
        unique * lines, alone, alone * lines, alone * (lines >= PREFETCHED_LINES), state,
        *(lookups * lines * _beyond(gradients, level) for level in caches[:2]),
        _touched(table, row, PAGE_TABLE_LINE_BYTES), _touched(table, row, PAGE_TABLE_BYTES),
    ]  # fmt: skip


_BACKWARD: dict[str, TableWork] = {EMBEDDING_BAG: _backward, FBGEMM: _fbgemm_backward}


def _counts(table: TableLookup) -> list[float]:
    values = table.lookups * table.dim * (1.2 if table.weighted else 1.0)
    return [1.0, table.batch, _lookups(table), values, table.batch * table.dim]


def _stats(table: TableLookup) -> IndexStats:
    return table.indices.stats(table.rows, table.lookups)


def _lookups(table: TableLookup) -> float:
    return max(table.lookups, 1e-9)


def _beyond(bytes_: float, cache: float) -> float:
    """Share of a buffer that does not fit the cache."""
    return max(0.0, 1 - cache / max(bytes_, 1.0))


def _touched(table: TableLookup, bytes_per_row: float, block_bytes: float) -> float:
    """Blocks of memory that hold a row looked up, popular rows lying anywhere in the table."""
    rows_per_block = block_bytes / bytes_per_row
    unique = _stats(table).unique_rows
    if rows_per_block <= 1:
        return unique / rows_per_block
    untouched = max(0.0, 1 - unique / table.rows) ** rows_per_block
    return float(max(table.rows / rows_per_block, 1.0) * (1 - untouched))
