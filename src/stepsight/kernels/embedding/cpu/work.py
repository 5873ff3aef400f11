"""What a lookup does on a CPU, in counts that have a cost each, by phase and operator.

``embedding_bag``: torch looks each table up by itself; its backward writes one gradient row per
lookup, sorts the lookups by row and adds up each row's gradients.
``fbgemm``: one call goes table by table. Its backward sorts the lookups of every table by row,
gathers each row's gradients straight from the output's and updates the rows in ascending order.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""Rows of this many lines and more set the prefetcher off, which then runs past their end: measured on an AMD
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


_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
_LSCPU = ["lscpu", "-B", "-C=NAME,ONE-SIZE,TYPE"]
_UNITS = {"": 1, "K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30}


def detect_caches(sysfs: Path = _SYSFS) -> tuple[float, ...]:
    """Bytes of each level of data cache that one core can use, nearest first; empty where unknown."""
    return _from_sysfs(sysfs) or _from_lscpu()


def _from_sysfs(folder: Path) -> tuple[float, ...]:
    levels: dict[int, float] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = _bytes((index / "size").read_text())
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified"):
            levels[level] = size
    return tuple(levels[level] for level in sorted(levels))


def _from_lscpu() -> tuple[float, ...]:
    try:
        known = subprocess.run(_LSCPU, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    rows = [line.split() for line in known.stdout.splitlines()[1:]]
    return tuple(float(row[1]) for row in sorted(rows) if len(row) == 3 and row[2] in ("Data", "Unified"))


def _bytes(text: str) -> float:
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"not a size: {text!r}")
    return float(match[1]) * _UNITS[match[2].upper()]


LARGEST = 1e4
"""No figure of a fit is larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A learned factor: radial basis functions around ``centres`` of standardised features."""

    mean: FloatArray
    scale: FloatArray
    centres: FloatArray
    weights: FloatArray
    width: float

    def log_factor(self, features: FloatArray) -> FloatArray:
        """ln of the factor; it fades to one far from what was measured."""
        x = (features - self.mean) / self.scale
        return np.asarray(radial_basis(x, self.centres, self.width) @ self.weights)

    def record(self) -> dict[str, Any]:
        """As plain lists, for a JSON file."""
        return {
            "mean": self.mean.tolist(), "scale": self.scale.tolist(),
            "centres": np.round(self.centres, 4).tolist(), "weights": np.round(self.weights, 6).tolist(),
            "width": self.width,
        }  # fmt: skip

    @classmethod
    def from_record(cls, r: Mapping[str, Any]) -> Residual:
        mean, scale, centres, weights = (
            np.array(r[key], dtype=np.float64) for key in ("mean", "scale", "centres", "weights")
        )
        width = float(r["width"])
        largest = max(np.abs(part).max(initial=0.0) for part in (mean, centres, weights))
        if not (largest < LARGEST and width > 0 and (np.abs(scale) > 1 / LARGEST).all()):
            raise ValueError("its learned factor holds figures that no fit makes")
        return cls(mean, scale, centres, weights, width)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseModel:
    """One phase's fitted rates in µs per unit of `work`, and the learned factor on top.

    ``start_us`` is what a call for all tables takes whatever they are.
    """

    rates: FloatArray
    residual: Residual | None
    spread: float
    start_us: float = 0.0

    def table_us(self, work: FloatArray, features: FloatArray) -> FloatArray:
        """Time of each table."""
        base = work @ self.rates
        return base if self.residual is None else base * np.exp(self.residual.log_factor(features))

    def record(self) -> dict[str, Any]:
        residual = None if self.residual is None else self.residual.record()
        return {
            "rates": self.rates.tolist(), "residual": residual, "spread": round(self.spread, 4),
            "start_us": self.start_us,
        }  # fmt: skip

    @classmethod
    def from_record(cls, r: Mapping[str, Any]) -> PhaseModel:
        residual = None if r["residual"] is None else Residual.from_record(r["residual"])
        rates = np.array(r["rates"], dtype=np.float64)
        spread, start_us = float(r["spread"]), float(r.get("start_us", 0.0))
        if not (
            (rates >= 0).all() and rates.max(initial=0.0) < LARGEST and 0 <= spread < 5 and start_us >= 0
        ):
            raise ValueError("its rates are not those of a machine")
        return cls(rates, residual, spread, start_us)


def features(tables: Sequence[TableLookup], caches: Sequence[float]) -> FloatArray:
    """Tables × what the learned factor may depend on: sizes on a log scale, and hit rates."""
    rows = []
    for t in tables:
        stats = t.indices.stats(t.rows, t.lookups)
        row = row_bytes(t)
        logs = (
            t.batch, t.lookups, t.dim, max(t.pooling, 0.05), t.rows * row,
            stats.unique_rows * row, stats.mean_reuse, t.lookups * t.dim * 4.0, t.rows,
            max(stats.unique_rows / t.rows, 1e-6), sort_passes(t.rows),
        )  # fmt: skip
        hits = stats.hit_rate(np.asarray(caches) / row)
        rows.append([*np.log(logs), *hits])
    return np.array(rows)


def radial_basis(x: FloatArray, centres: FloatArray, width: float) -> FloatArray:
    """Gaussians of the distance to every centre, per feature dimension."""
    square = (x**2).sum(1)[:, None] + (centres**2).sum(1)[None, :] - 2 * x @ centres.T
    return np.asarray(np.exp(-np.maximum(square, 0.0) / (2 * width**2 * x.shape[1])))
