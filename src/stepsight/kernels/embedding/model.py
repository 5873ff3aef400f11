"""The time of embedding lookups on one processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.gpu import UNCALIBRATED_CPU, GpuCoefficients, GpuTimes, shipped_coefficients
from stepsight.program.job import Kernel
from stepsight.tables.lookup import Lookup, TableLookup

CPU = "cpu"
"""The architecture of a platform whose kernels the host executes itself."""
FAMILIES = ("embedding", "embedding_backward")


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
    coefficients: GpuCoefficients = field(default_factory=shipped_coefficients)

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> EmbeddingModel:
        """The shipped coefficients, carried to this GPU by its memory system."""
        return cls(spec, UNCALIBRATED_CPU if spec.architecture == CPU else shipped_coefficients())

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times = np.array([self.launches_us(k, self.launches(k)) for k in kernels], dtype=np.float64)
        if self.spec.architecture == CPU:
            return Estimates.uniform(times, Source.DEFAULT, self.coefficients.spread, "uncalibrated CPU")
        source = np.full(len(kernels), int(Source.TRANSFERRED))
        return Estimates(times, source, np.array([self._spread(kernel) for kernel in kernels]))

    def _spread(self, kernel: Kernel) -> float:
        c = self.coefficients
        if kernel.lookup is not None and not kernel.lookup.sorted_update:
            return c.legacy_spread
        return c.spread if kernel.family == "embedding" else c.backward_spread

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per-table columns, computed once; ``together`` is how many tables a kernel fuses (all)."""
        n = len(tables) if together is None else together
        cache = self._times.cache
        return TableCosts(
            traffic.forward_columns(tables, cache, together=n),
            traffic.backward_columns(tables, cache, together=n, optimizer=optimizer),
        )

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """Time of a fused forward whose tables' columns add up to ``sums`` (…, columns)."""
        return self._times.forward_us(np.asarray(sums, dtype=np.float64))

    def backward_us(self, sums: FloatArray) -> FloatArray:
        """Time of a fused backward and update whose columns add up to ``sums``."""
        return self._times.backward_us(np.asarray(sums, dtype=np.float64))

    @property
    def _times(self) -> GpuTimes:
        return GpuTimes(self.spec, self.coefficients)

    def launches(self, kernel: Kernel) -> FloatArray:
        """Summed columns of every kernel that is launched: one if fused, else one per table."""
        if kernel.family not in FAMILIES or kernel.lookup is None:
            raise StepsightError(f"not an embedding kernel with tables: {kernel.name or kernel.family}")
        lookup = kernel.lookup
        together = len(lookup.tables) if lookup.fused else 1
        columns = self._columns(kernel.family, lookup, together)
        return columns.sum(axis=0, keepdims=True) if lookup.fused else columns

    def launches_us(self, kernel: Kernel, launches: FloatArray) -> float:
        """Time of a kernel whose `launches` are known."""
        assert kernel.lookup is not None  # launches() has looked
        times = self._times.forward_us if kernel.family == FAMILIES[0] else self._times.backward_us
        return float(times(launches, sorted_update=kernel.lookup.sorted_update).sum()) * kernel.lookup.part

    def _columns(self, family: str, lookup: Lookup, together: int) -> FloatArray:
        cache, replayed = self._times.cache, lookup.replayed
        if family == FAMILIES[0]:
            return traffic.forward_columns(lookup.tables, cache, together=together, replayed=replayed)
        return traffic.backward_columns(
            lookup.tables, cache, together=together, optimizer=lookup.optimizer,
            sorted_update=lookup.sorted_update, replayed=replayed,
        )  # fmt: skip
