"""Lookups timed from a machine's own measurements: one embedding-bag call per table.

Per table the ratio of the measured time to its traffic is a smooth function of the sizes and
of what the indices make of them: distinct rows, and the share of lookups that small caches
serve. Tables that are looked up one after the other add up, so a search over plans does too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.errors import InputError, StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.kernels.embedding.lookup import TableLookup
from stepsight.kernels.embedding.model import TableCosts
from stepsight.kernels.measured import Efficiency
from stepsight.workload.program import Kernel, dtype_bytes

FILE = "embedding.json"
PHASES = {"embedding": "forward", "embedding_backward": "backward"}
START_US = 8.0
LOOKUP_US = 0.005
"""A first guess of what a call and a lookup cost besides traffic; the fit corrects it."""
CACHES_BYTES = (1 << 20, 1 << 24)
"""A core's own cache and a share of the one all cores have: hit rates there are features."""


def table_features(table: TableLookup) -> FloatArray:
    """ln of lookups, bags, row bytes, distinct bytes and table bytes; hit rates of two caches."""
    row = table.dim * dtype_bytes(table.dtype)
    stats = table.indices.stats(table.rows, table.lookups)
    sizes = [table.lookups, table.batch, row, stats.unique_rows * row, table.rows * row]
    hits = stats.hit_rate(np.array(CACHES_BYTES) / row)
    return np.concatenate([np.log(np.maximum(sizes, 1.0)), 2.0 * hits])


def light_us(table: TableLookup, memory_gbps: float) -> float:
    """A scale for the time of one table: a start, the lookups, and the rows' traffic."""
    traffic = (table.lookups + table.batch) * table.dim * dtype_bytes(table.dtype)
    return START_US + LOOKUP_US * table.lookups + traffic / (memory_gbps * 1e3)


@dataclass(frozen=True, slots=True)
class MeasuredLookups:
    """The embedding model of a calibrated platform, by phase.

    ``in_step`` is how much longer the phase takes inside a step than in the benchmark.
    """

    memory_gbps: float
    phases: Mapping[str, Efficiency]
    in_step: Mapping[str, float]

    @classmethod
    def fit(
        cls, tables: Sequence[TableLookup], times_us: Mapping[str, FloatArray], memory_gbps: float
    ) -> MeasuredLookups:
        """From the times of single tables, by phase."""
        sizes = np.array([table_features(t) for t in tables])
        light = np.array([light_us(t, memory_gbps) for t in tables])
        phases = {phase: Efficiency.fit(sizes, np.log(times / light)) for phase, times in times_us.items()}
        return cls(memory_gbps, phases, {})

    def table_us(self, phase: str, tables: Sequence[TableLookup]) -> FloatArray:
        """Time of each table on its own."""
        if not tables:
            return np.zeros(0)
        sizes = np.array([table_features(t) for t in tables])
        light = np.array([light_us(t, self.memory_gbps) for t in tables])
        return np.asarray(light * np.exp(self.phases[phase].log_ratio(sizes)) * self.in_step.get(phase, 1.0))

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times, spread = np.zeros(len(kernels)), np.zeros(len(kernels))
        for i, kernel in enumerate(kernels):
            phase = PHASES.get(kernel.family)
            if phase is None or kernel.lookup is None:
                raise StepsightError(f"not an embedding kernel with tables: {kernel.name or kernel.family}")
            times[i] = self.table_us(phase, kernel.lookup.tables).sum()
            spread[i] = self.phases[phase].spread
        source = np.full(len(kernels), int(Source.MEASURED))
        return Estimates(times, source, spread)

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per-table times: nothing is fused here, so they add up as they are."""
        return TableCosts(
            self.table_us("forward", tables)[:, None], self.table_us("backward", tables)[:, None]
        )

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """The time of a rank whose tables' costs add up to ``sums``."""
        return np.asarray(sums[..., 0])

    def backward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        return np.asarray(sums[..., 0])

    def save(self, folder: Path) -> None:
        content = {
            "memory_gbps": self.memory_gbps,
            "in_step": dict(self.in_step),
            "phases": {phase: model.record() for phase, model in self.phases.items()},
        }
        (folder / FILE).write_text(json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: Path) -> MeasuredLookups:
        path = folder / FILE
        try:
            content = json.loads(path.read_text())
            phases = {phase: Efficiency.from_record(r) for phase, r in content["phases"].items()}
            return cls(content["memory_gbps"], phases, content["in_step"])
        except FileNotFoundError:
            raise InputError(str(path), "is missing", "calibrate the platform again") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"is damaged ({error})", "calibrate the platform again") from None
