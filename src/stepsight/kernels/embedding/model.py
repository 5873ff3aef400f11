"""The time of embedding lookups on one processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepsight.constants import area
from stepsight.errors import StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.gpu import UNCALIBRATED_CPU, GpuCoefficients, GpuTimes, shipped_coefficients
from stepsight.program.job import Kernel
from stepsight.tables.indices.index_files import extrapolation
from stepsight.tables.lookup import INDEX_ADD, SCATTERED, SORTED, Lookup, TableLookup
from stepsight.tables.table import CACHED

C = area("kernels")

CPU = "cpu"
"""The architecture of a platform whose kernels the host executes itself."""
FAMILIES = ("embedding", "embedding_backward")
POOLED_DTYPE = "fp32"
"""What FBGEMM's fused lookup returns, and its gradient, whatever its rows are (its default output_dtype)."""


@dataclass(frozen=True, slots=True)
class TableCosts:
    """Costs of single tables, ready to be summed: ``forward`` and ``backward`` are tables × columns.

    For an assignment matrix A (plans·ranks × tables, of zeros and ones),
    ``model.forward_us(A @ costs.forward)`` is the time of every rank of every plan.
    """

    forward: FloatArray
    backward: FloatArray


@dataclass(frozen=True, slots=True)
class TableTraffic:
    """One table alone in a lookup and its backward: distinct rows, bytes of both, and times of each."""

    unique_rows: float
    memory_bytes: float
    cache_bytes: float
    forward_us: float
    backward_us: float


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """Times embedding kernels of one processor (`Kernel.lookup` names the tables)."""

    spec: GpuSpec
    coefficients: GpuCoefficients = field(default_factory=shipped_coefficients)
    _times: GpuTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_times", GpuTimes(self.spec, self.coefficients))

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> EmbeddingModel:
        """The shipped coefficients, carried to this GPU by its memory system."""
        return cls(spec, UNCALIBRATED_CPU if spec.architecture == CPU else shipped_coefficients())

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times = np.zeros(len(kernels))
        identical: dict[tuple[str, int, Lookup], list[int]] = {}
        for i, kernel in enumerate(kernels):
            lookup = _lookup_of(kernel)
            together = len(lookup.tables) if lookup.fused else 1
            identical.setdefault((kernel.family, together, replace(lookup, tables=())), []).append(i)
        for (family, together, how), members in identical.items():
            times[members] = self._priced_at_once_us(
                family, together, how, [_lookup_of(kernels[i]) for i in members]
            )
        if self.spec.architecture == CPU:
            return Estimates.uniform(times, Source.DEFAULT, self.coefficients.spread, "uncalibrated CPU")
        source = np.full(len(kernels), int(Source.TRANSFERRED))
        notes = {i: note for i, kernel in enumerate(kernels) if (note := _note(kernel))}
        return Estimates(times, source, np.array([self._spread(kernel) for kernel in kernels]), notes)

    def _priced_at_once_us(
        self, family: str, together: int, how: Lookup, lookups: Sequence[Lookup]
    ) -> FloatArray:
        """Times of lookups that differ in their tables alone, priced at once."""
        tables = tuple(t for lookup in lookups for t in lookup.tables)
        columns = self._columns(family, replace(how, tables=tables), together)
        of_launch = self._times.forward_us if family == FAMILIES[0] else self._times.backward_us
        if how.fused:
            columns = columns.reshape(len(lookups), together, columns.shape[1]).sum(axis=1)
            return how.part * of_launch(columns, update=how.update)
        owner = np.repeat(np.arange(len(lookups)), [len(lookup.tables) for lookup in lookups])
        times = of_launch(columns, update=how.update)
        summed: FloatArray = np.bincount(owner, how.part * times, len(lookups)).astype(np.float64)
        return summed

    def _spread(self, kernel: Kernel) -> float:
        """The wider one as far as lookups are of a kind that few have measured."""
        c, lookup = self.coefficients, _lookup_of(kernel)
        if lookup.update == SCATTERED:
            return c.legacy_spread
        forward = kernel.family == FAMILIES[0]
        usual = c.spread if forward else c.backward_spread
        wider = usual + _unmeasured(lookup) * max(C.UNMEASURED_LOOKUP_SPREAD - usual, 0.0)
        return wider if forward else max(wider, usual + _by_blocks(lookup) * (C.BLOCKS_SPREAD - usual))

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per-table columns, computed once; ``together`` is how many tables a kernel fuses (all)."""
        n = len(tables) if together is None else together
        cache = self._times.cache
        return TableCosts(
            traffic.forward_columns(tables, cache, together=n, pooled_dtype=POOLED_DTYPE),
            traffic.backward_columns(
                tables, cache, together=n, optimizer=optimizer, pooled_dtype=POOLED_DTYPE
            ),
        )

    def table_traffic(self, lookup: Lookup, together: int) -> TableTraffic:
        """The only table of a lookup, whose kernel holds ``together`` tables that share its cache."""
        (table,) = lookup.tables
        columns = [self._columns(family, lookup, together) for family in FAMILIES]
        times = self._times
        return TableTraffic(
            unique_rows=table.indices.stats(table.rows, table.lookups).unique_rows,
            memory_bytes=float(sum(c[0, traffic.DRAM] for c in columns)),
            cache_bytes=float(sum(c[0, traffic.L2] for c in columns)),
            forward_us=float(times.forward_us(columns[0], update=lookup.update)[0]),
            backward_us=float(times.backward_us(columns[1], update=lookup.update)[0]),
        )

    @property
    def concave(self) -> tuple[int, ...]:
        """Columns whose first part costs most."""
        return traffic.CONCAVE

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """Time of a fused forward whose tables' columns add up to ``sums`` (…, columns)."""
        return self._times.forward_us(np.asarray(sums, dtype=np.float64))

    def backward_us(self, sums: FloatArray) -> FloatArray:
        """Time of a fused backward and update whose columns add up to ``sums``."""
        return self._times.backward_us(np.asarray(sums, dtype=np.float64))

    def launches(self, kernel: Kernel) -> FloatArray:
        """Summed columns of every kernel that is launched: one if fused, else one per table."""
        lookup = _lookup_of(kernel)
        together = len(lookup.tables) if lookup.fused else 1
        columns = self._columns(kernel.family, lookup, together)
        return columns.sum(axis=0, keepdims=True) if lookup.fused else columns

    def launches_us(self, kernel: Kernel, launches: FloatArray) -> float:
        """Time of a kernel whose `launches` are known."""
        assert kernel.lookup is not None  # launches() has looked
        times = self._times.forward_us if kernel.family == FAMILIES[0] else self._times.backward_us
        return float(times(launches, update=kernel.lookup.update).sum()) * kernel.lookup.part

    def _columns(self, family: str, lookup: Lookup, together: int) -> FloatArray:
        cache, replayed = self._times.cache, lookup.replayed
        pooled = lookup.output_dtype if lookup.fused and lookup.update != SCATTERED else ""
        if family == FAMILIES[0]:
            return traffic.forward_columns(
                lookup.tables, cache, together=together, replayed=replayed, pooled_dtype=pooled
            )
        return traffic.backward_columns(
            lookup.tables, cache, together=together, optimizer=lookup.optimizer,
            update=lookup.update, replayed=replayed, pooled_dtype=pooled,
        )  # fmt: skip


def _note(kernel: Kernel) -> str:
    """What a batch that is larger than its index file was continued by, or what few measurements show."""
    lookup = _lookup_of(kernel)
    for table in lookup.tables:
        if table.indices.kind == "file":
            whole = table.indices.whole_rows or table.rows
            share = table.rows / whole
            note = extrapolation(table.indices.path, table.indices.table, whole, table.lookups / share)
            if note:
                return note
    if kernel.family == FAMILIES[1] and _by_blocks(lookup) > 0.5:
        return f"most rows have more than {traffic.WARP_RUN} lookups, which FBGEMM folds by a block per row"
    return ""


def _by_blocks(lookup: Lookup) -> float:
    """Share of the rows that a sorted backward folds by blocks, each table weighted by its lookups."""
    if lookup.update != SORTED:
        return 0.0
    return _share(
        lookup, lambda table: traffic.rows_by_blocks(table.indices.stats(table.rows, table.lookups))
    )


def _unmeasured(lookup: Lookup) -> float:
    """Share of the lookups of a kind that at most one source measured: index_add_, rows through a cache, or
    bags of very different length."""
    if lookup.update == INDEX_ADD:
        return 1.0
    return _share(
        lookup, lambda table: float(table.placement in CACHED or table.bag_spread > C.MEASURED_BAG_SPREAD)
    )


def _share(lookup: Lookup, of_table: Callable[[TableLookup], float]) -> float:
    lookups = sum(table.lookups for table in lookup.tables)
    return sum(table.lookups * of_table(table) for table in lookup.tables) / max(lookups, 1e-12)


def _lookup_of(kernel: Kernel) -> Lookup:
    if kernel.family not in FAMILIES or kernel.lookup is None:
        raise StepsightError(f"not an embedding kernel with tables: {kernel.label}")
    return kernel.lookup
