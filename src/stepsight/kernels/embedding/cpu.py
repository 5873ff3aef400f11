"""Lookups on a CPU: one call per table, rows served level by level of the cache hierarchy.

The time of a table is work that physics names (calls, bags, lookups, values, and cache lines
from every level) at fitted rates, times an efficiency learned from what such a sum cannot say.
Tables run one after another, so a lookup's time is the sum over its tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.lookup import TableLookup
from stepsight.kernels.embedding.traffic import optimizer_state
from stepsight.workload.program import dtype_bytes

LINE_BYTES = 64
"""A cache line of every x86 and most Arm processors."""
SORT_BYTES = 32
"""A lookup in the sort: its row and its position, each in two buffers that take turns."""


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
        return cls(mean, scale, centres, weights, float(r["width"]))


@dataclass(frozen=True, slots=True, eq=False)
class PhaseModel:
    """One phase's fitted rates in µs per unit of `work`, and the learned factor on top."""

    rates: FloatArray
    residual: Residual | None
    spread: float

    def table_us(self, work: FloatArray, features: FloatArray) -> FloatArray:
        """Time of each table's own call."""
        base = work @ self.rates
        return base if self.residual is None else base * np.exp(self.residual.log_factor(features))

    def record(self) -> dict[str, Any]:
        residual = None if self.residual is None else self.residual.record()
        return {"rates": self.rates.tolist(), "residual": residual, "spread": round(self.spread, 4)}

    @classmethod
    def from_record(cls, r: Mapping[str, Any]) -> PhaseModel:
        residual = None if r["residual"] is None else Residual.from_record(r["residual"])
        return cls(np.array(r["rates"], dtype=np.float64), residual, float(r["spread"]))


def work(
    tables: Sequence[TableLookup], caches: Sequence[float], phase: str, optimizer: str = "sgd"
) -> FloatArray:
    """Tables × kinds of work: what a call does, in counts that have a cost each."""
    return np.array([_table_work(t, caches, phase, optimizer) for t in tables])


def features(tables: Sequence[TableLookup], caches: Sequence[float]) -> FloatArray:
    """Tables × what the learned factor may depend on: sizes on a log scale, and hit rates."""
    rows = []
    for t in tables:
        stats = t.indices.stats(t.rows, t.lookups)
        row_bytes = _row_bytes(t)
        logs = (
            t.batch, t.lookups, t.dim, max(t.pooling, 0.05), t.rows * row_bytes,
            stats.unique_rows * row_bytes, stats.mean_reuse, t.lookups * t.dim * 4.0, t.rows,
            max(stats.unique_rows / t.rows, 1e-6), _sort_passes(t.rows),
        )  # fmt: skip
        hits = stats.hit_rate(np.asarray(caches) / row_bytes)
        rows.append([*np.log(logs), *hits])
    return np.array(rows)


def radial_basis(x: FloatArray, centres: FloatArray, width: float) -> FloatArray:
    """Gaussians of the distance to every centre, per feature dimension."""
    square = (x**2).sum(1)[:, None] + (centres**2).sum(1)[None, :] - 2 * x @ centres.T
    return np.asarray(np.exp(-np.maximum(square, 0.0) / (2 * width**2 * x.shape[1])))


def _row_bytes(table: TableLookup) -> float:
    return float(np.ceil(table.dim * dtype_bytes(table.dtype) / LINE_BYTES) * LINE_BYTES)


def _table_work(table: TableLookup, caches: Sequence[float], phase: str, optimizer: str) -> list[float]:
    stats = table.indices.stats(table.rows, table.lookups)
    lookups, values = max(table.lookups, 1e-9), table.lookups * table.dim
    row_bytes = _row_bytes(table)
    lines = row_bytes / LINE_BYTES
    hits = stats.hit_rate(np.asarray(caches) / row_bytes)
    missed = lookups * (1 - hits)  # of each level: served by the next one, or by memory
    out = [1.0, table.batch, lookups, values * (1.2 if table.weighted else 1.0), table.batch * table.dim]
    if phase == "forward":
        return [*out, *missed, *(missed * lines)]
    # torch sorts the lookups by row, then adds up each row's gradients, which lie where the batch has them.
    per_element, per_row = optimizer_state(optimizer)
    touched = stats.unique_rows * (lines * (1 + per_element) + per_row)
    gathered = [lookups * _beyond(values * 4.0, level) for level in caches]
    sorted_far = [lookups * _beyond(lookups * SORT_BYTES, level) for level in caches[1:]]
    return [
        *out, lookups * _sort_passes(table.rows), stats.unique_rows, touched,
        *gathered, *(lines * far for far in gathered), *sorted_far,
    ]  # fmt: skip


def _beyond(bytes_: float, cache: float) -> float:
    """Share of a buffer that does not fit the cache."""
    return max(0.0, 1 - cache / max(bytes_, 1.0))


def _sort_passes(rows: int) -> int:
    """A radix sort looks at a byte of the row's number in each pass."""
    return max(1, -(-max(rows - 1, 1).bit_length() // 8))
