"""Lookups on a CPU: tables one after another, rows served level by level of the cache hierarchy.

The time of a table is work that physics names (bags, lookups, values, and cache lines from
every level) at fitted rates, times an efficiency learned from what such a sum cannot say.
A lookup's time is the sum over its tables, and a start where one call serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.cpu.work import row_bytes, sort_passes
from stepsight.tables.lookup import TableLookup

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
