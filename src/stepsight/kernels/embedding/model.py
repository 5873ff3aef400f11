"""The time of an embedding lookup on a GPU: traffic by the hit rate, over what the memory gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.lookup import Lookup, TableLookup
from stepsight.kernels.embedding.traffic import CacheView
from stepsight.platform.spec import GpuSpec
from stepsight.workload.program import Kernel

FAMILIES = ("embedding", "embedding_backward")


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """What the specification does not say, fitted on V100 kernels and checked elsewhere.

    Efficiencies are shares of the data sheet's bandwidth; ``cache_share`` is the part of the
    L2 that rows find room in; ``norm`` joins the memory, cache and latency times smoothly.
    """

    dram_efficiency: float = 0.92
    write_efficiency: float = 0.72
    l2_efficiency: float = 0.80
    cache_share: float = 0.80
    norm: float = 4.0
    start_us: float = 3.3
    latency_us: float = 0.6
    unrolled: float = 4.0
    warps_per_sm: float = 32.0
    backward_start_us: float = 45.0
    sort_bytes: float = 140.0
    spread: float = 0.15


@dataclass(frozen=True, slots=True)
class TableCosts:
    """Costs of single tables, ready to be summed: ``forward`` and ``backward`` are tables × columns.

    For an assignment matrix A (plans·ranks × tables, of zeros and ones),
    ``model.forward_us(A @ costs.forward)`` is the time of every rank of every plan.
    """

    forward: FloatArray
    backward: FloatArray


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """Times embedding kernels of one processor (`Kernel.lookup` names the tables)."""

    spec: GpuSpec
    coefficients: GpuCoefficients = field(default_factory=GpuCoefficients)

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> EmbeddingModel:
        """The shipped coefficients, carried to this GPU by its memory system."""
        return cls(spec)

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times = np.array([self._kernel_us(kernel) for kernel in kernels], dtype=np.float64)
        return Estimates.uniform(times, Source.TRANSFERRED, self.coefficients.spread)

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per-table columns, computed once; ``together`` is how many tables a kernel fuses (all)."""
        n = len(tables) if together is None else together
        return TableCosts(
            traffic.forward_columns(tables, self._cache, together=n),
            traffic.backward_columns(tables, self._cache, together=n, optimizer=optimizer),
        )

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """Time of a fused forward whose tables' columns add up to ``sums`` (…, columns)."""
        c = self.coefficients
        return self._join(sums, c.dram_efficiency, c.start_us)

    def backward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        """Time of a fused backward and update whose columns add up to ``sums``."""
        c = self.coefficients
        if not sorted_update:
            return self._join(sums, c.write_efficiency, c.start_us)
        sort = sums[..., traffic.LOOKUPS] * c.sort_bytes / self._bytes_per_us(c.dram_efficiency)
        return np.where(
            sums[..., traffic.BAGS] > 0, self._join(sums, c.write_efficiency, c.backward_start_us) + sort, 0.0
        )

    @property
    def _cache(self) -> CacheView:
        c = self.coefficients
        return CacheView(
            self.spec.l2_mb * 1e6 * c.cache_share, self.spec.sector_bytes, self.spec.sms * c.warps_per_sm
        )

    def _bytes_per_us(self, efficiency: float) -> float:
        return self.spec.memory_gbps * 1e3 * efficiency

    def _join(self, sums: FloatArray, dram_efficiency: float, start_us: float) -> FloatArray:
        c = self.coefficients
        sums = np.asarray(sums, dtype=np.float64)
        memory = sums[..., traffic.DRAM] / self._bytes_per_us(dram_efficiency)
        cache = sums[..., traffic.L2] / (self.spec.l2_gbps * 1e3 * c.l2_efficiency)
        # Little's law: a bag is a chain of loads, `unrolled` of them in flight.
        at_once = np.clip(sums[..., traffic.BAGS], 1.0, self.spec.sms * c.warps_per_sm)
        load_us = c.latency_us / c.unrolled
        waiting = sums[..., traffic.LOOKUPS] * load_us / at_once
        chain = sums[..., traffic.CHAIN] ** (1 / traffic.CHAIN_POWER) * load_us
        parts = np.stack([memory, cache, np.maximum(waiting, chain)])
        joined = np.sum(parts**c.norm, axis=0) ** (1 / c.norm)
        return np.where(sums[..., traffic.BAGS] > 0, start_us + joined, 0.0)

    def _kernel_us(self, kernel: Kernel) -> float:
        if kernel.family not in FAMILIES or kernel.lookup is None:
            raise StepsightError(f"not an embedding kernel with tables: {kernel.name or kernel.family}")
        lookup = kernel.lookup
        if lookup.fused:
            return self._lookup_us(kernel.family, lookup, lookup.tables)
        return sum(self._lookup_us(kernel.family, lookup, (table,)) for table in lookup.tables)

    def _lookup_us(self, family: str, lookup: Lookup, tables: tuple[TableLookup, ...]) -> float:
        if family == "embedding":
            columns = traffic.forward_columns(
                tables, self._cache, together=len(tables), replayed=lookup.replayed
            )
            return float(self.forward_us(columns.sum(axis=0)))
        columns = traffic.backward_columns(
            tables, self._cache, together=len(tables), optimizer=lookup.optimizer,
            sorted_update=lookup.sorted_update, replayed=lookup.replayed,
        )  # fmt: skip
        return float(self.backward_us(columns.sum(axis=0), sorted_update=lookup.sorted_update))
