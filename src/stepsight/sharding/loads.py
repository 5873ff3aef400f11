"""What a plan asks of each rank: lookup time, pooled columns to send, gradients to all-reduce.

All of it adds up over the parts of tables that a rank holds. A part's costs are computed
once; any number of plans is then a sum over rows of one matrix. Where index streams of
several days are given, every cost has one value a day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import Estimates, FloatArray, IntArray
from stepsight.kernels.embedding.model import EmbeddingModel, TableCosts
from stepsight.program.job import Kernel
from stepsight.tables.lookup import Lookup, TableLookup
from stepsight.tables.plan import DATA_PARALLEL, TABLE_ROW_WISE, Plan, part_bytes
from stepsight.tables.table import Table

Estimator = Callable[[Sequence[Kernel]], Estimates]


class LookupModel(Protocol):
    """An embedding model whose costs add up over tables (`EmbeddingModel` is one)."""

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = ..., together: int | None = ...
    ) -> TableCosts: ...

    @property
    def concave(self) -> tuple[int, ...]:
        """Columns in which time is concave: shared out evenly, they cost more than all on one rank."""
        ...

    def forward_us(self, sums: FloatArray) -> FloatArray: ...

    def backward_us(self, sums: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class SeparateLookups:
    """One kernel per table: times themselves add up."""

    estimate: Estimator
    concave: tuple[int, ...] = ()

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        lookups = [Lookup((table,), optimizer, fused=False) for table in tables]
        forward, backward = (
            self.estimate([Kernel(family, lookup=lookup) for lookup in lookups]).time_us[:, None]
            for family in ("embedding", "embedding_backward")
        )
        return TableCosts(forward, backward)

    def forward_us(self, sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0])

    def backward_us(self, sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0])


@dataclass(frozen=True, slots=True)
class ScaledLookups:
    """Fused kernels by their additive form, scaled to what the platform says of a known plan.

    The additive form fixes how many tables share a kernel's cache; the platform's own
    estimate knows it for each rank. On the plan that both have seen they agree.
    """

    model: EmbeddingModel
    forward_scale: float = 1.0
    backward_scale: float = 1.0

    @property
    def concave(self) -> tuple[int, ...]:
        return self.model.concave

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        return self.model.table_costs(tables, optimizer=optimizer, together=together)

    def forward_us(self, sums: FloatArray) -> FloatArray:
        return self.forward_scale * self.model.forward_us(sums)

    def backward_us(self, sums: FloatArray) -> FloatArray:
        return self.backward_scale * self.model.backward_us(sums)


def scaled_to(
    model: EmbeddingModel, estimate: Estimator, lookups: Sequence[Lookup], together: int
) -> ScaledLookups:
    """The additive form of ``model``, agreeing with ``estimate`` on these lookups on the whole."""
    full = [lookup for lookup in lookups if lookup.tables]
    if not full:
        return ScaledLookups(model)
    sums = [model.table_costs(x.tables, optimizer=x.optimizer, together=together) for x in full]
    forward = model.forward_us(np.stack([s.forward.sum(axis=0) for s in sums]))
    backward = model.backward_us(np.stack([s.backward.sum(axis=0) for s in sums]))
    known = [
        estimate([Kernel(family, lookup=lookup) for lookup in full]).time_us
        for family in ("embedding", "embedding_backward")
    ]
    return ScaledLookups(model, _ratio(known[0], forward), _ratio(known[1], backward))


def _ratio(known: FloatArray, added: FloatArray) -> float:
    return float(known.sum() / added.sum()) if added.sum() > 0 else 1.0


@dataclass(frozen=True, slots=True)
class TablePart:
    """A part of a table as the costs see it: where it lies does not matter, its size does."""

    table: int
    width: int
    height: int
    replicated: bool = False
    in_node: bool = False


@dataclass(frozen=True, slots=True)
class Loads:
    """What plans ask of their ranks: arrays of shape (plans, days, ranks).

    ``columns`` are the pooled output values per sample that a rank computes for the others;
    ``node_columns`` those of row-wise parts that are first summed inside a node; ``lookups``
    and ``bags`` are the indices and offsets it reads. ``gradient_bytes`` are the all-reduced
    gradients of data-parallel tables, which every rank holds; ``cuts`` counts the parts of
    tables that must be put together again.
    """

    forward_us: FloatArray
    backward_us: FloatArray
    columns: FloatArray
    node_columns: FloatArray
    lookups: FloatArray
    bags: FloatArray
    gradient_bytes: FloatArray
    memory_bytes: FloatArray
    cuts: FloatArray

    def __len__(self) -> int:
        return len(self.columns)

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Loads:
        """The same with every array changed."""
        return Loads(*(change(getattr(self, name)) for name in Loads.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Loads]) -> Loads:
        """The plans of all parts."""
        return cls(*(np.concatenate([getattr(x, name) for x in parts]) for name in cls.__slots__))


COLUMNS, NODE_COLUMNS, LOOKUPS, BAGS, GRADIENT, MEMORY, CUTS = range(7)
EXTRAS = 7
"""Columns of a part's costs that stand after the model's own."""


class PartCosts:
    """The cost rows of parts, made when first asked for.

    ``days`` holds the same tables once per index stream. ``together`` is how many tables a
    rank's fused kernel is expected to hold (they share its cache).
    """

    def __init__(
        self, days: Sequence[Sequence[Table]], batch: int, ranks: int, model: LookupModel, *,
        optimizer: str = "sgd", ranks_per_node: int | None = None, together: int | None = None,
    ) -> None:  # fmt: skip
        self.days = tuple(tuple(day) for day in days)
        self.tables = self.days[0]
        if any([t.name for t in day] != [t.name for t in self.tables] for day in self.days):
            raise StepsightError("every day must hold the same tables in the same order")
        self.batch, self.ranks, self.model, self.optimizer = batch, ranks, model, optimizer
        self.ranks_per_node = min(ranks_per_node or ranks, ranks)
        self.together = together or -(-len(self.tables) // ranks)
        self.index_of = {table.name: i for i, table in enumerate(self.tables)}
        self._row_of: dict[TablePart, int] = {}
        self._new: list[TablePart] = []
        self._buffer = np.empty((0, len(self.days), 0))
        self._split = 0
        self._columns: dict[tuple[int, int], FloatArray] = {}
        for i, table in enumerate(self.tables):
            self.row(TablePart(i, table.dim, table.rows))

    def row(self, part: TablePart) -> int:
        """The row of the cost matrix that describes this part."""
        row = self._row_of.get(part)
        if row is None:
            row = self._row_of[part] = len(self._row_of)
            self._new.append(part)
        return row

    @property
    def matrix(self) -> FloatArray:
        """(parts, days, columns): the model's forward columns, its backward columns, the extras."""
        if self._new:
            fresh = self._rows(self._new)
            known = len(self._row_of) - len(self._new)
            if len(self._buffer) < len(self._row_of):
                room = np.empty((2 * len(self._row_of), *fresh.shape[1:]))
                if known:
                    room[:known] = self._buffer[:known]
                self._buffer = room
            self._buffer[known : len(self._row_of)] = fresh
            self._new = []
        return self._buffer[: len(self._row_of)]

    def matrix_row(self, part: TablePart) -> FloatArray:
        """One part's costs, (days, columns)."""
        row = self.row(part)
        return np.array(self.matrix[row])

    def column_part(self, table: int, width: int) -> FloatArray:
        """The costs of this many columns of a table, (days, columns)."""
        found = self._columns.get((table, width))
        if found is None:
            found = self.matrix_row(TablePart(table, width, self.tables[table].rows))
            self._columns[table, width] = found
        return found

    def times(self, sums: FloatArray) -> Loads:
        """Loads from summed cost rows of shape (plans, days, ranks, columns)."""
        extra = sums[..., -EXTRAS:]
        return Loads(
            self.model.forward_us(sums[..., : self._split]),
            self.model.backward_us(sums[..., self._split : -EXTRAS]),
            *(extra[..., column] for column in range(EXTRAS)),
        )

    def without_concave(self, sums: FloatArray) -> FloatArray:
        """Summed cost rows less the columns in which time is concave."""
        left: FloatArray = sums.copy()
        for begin, end in ((0, self._split), (self._split, left.shape[-1] - EXTRAS)):
            left[..., [begin + c for c in self.model.concave if begin + c < end]] = 0.0
        return left

    def loads(self, plans: Sequence[Plan]) -> Loads:
        """The loads of many plans at once."""
        rows, places = self._shards(plans)
        matrix = self.matrix
        days, columns = matrix.shape[1:]
        places_count = len(plans) * self.ranks
        sums = np.empty((days, columns, places_count))
        for day in range(days):
            for column in range(columns):
                sums[day, column] = np.bincount(places, matrix[rows, day, column], minlength=places_count)
        shaped = sums.reshape(days, columns, len(plans), self.ranks)
        return self.times(np.ascontiguousarray(shaped.transpose(2, 0, 3, 1)))

    def part(self, table: int, width: int, height: int, kind: str) -> TablePart:
        return TablePart(table, width, height, kind == DATA_PARALLEL, kind == TABLE_ROW_WISE)

    def _shards(self, plans: Sequence[Plan]) -> tuple[IntArray, IntArray]:
        """For every shard of every plan its cost row and its (plan, rank) as one number."""
        rows: list[int] = []
        places: list[int] = []
        index_of, row = self.index_of, self.row
        for number, plan in enumerate(plans):
            base = number * self.ranks
            for s in plan.shards:
                rows.append(row(self.part(index_of[s.table], s.width, s.height, s.kind)))
                places.append(base + s.rank)
        return np.array(rows, dtype=np.int64), np.array(places, dtype=np.int64)

    def _rows(self, parts: Sequence[TablePart]) -> FloatArray:
        by_day = []
        for day in self.days:
            lookups = [self._lookup(day[part.table], part) for part in parts]
            costs = self.model.table_costs(lookups, optimizer=self.optimizer, together=self.together)
            self._split = costs.forward.shape[1]
            extra = [self._extra(day[p.table], p, lookup) for p, lookup in zip(parts, lookups, strict=True)]
            by_day.append(np.hstack([costs.forward, costs.backward, np.array(extra)]))
        return np.stack(by_day, axis=1)

    def _lookup(self, table: Table, part: TablePart) -> TableLookup:
        samples = self.batch / self.ranks if part.replicated else self.batch
        return TableLookup(
            rows=part.height,
            dim=part.width,
            batch=max(1, round(samples * table.features)),
            pooling=table.pooling * part.height / table.rows,
            indices=table.indices if part.height == table.rows else table.indices.part_of(table.rows),
            dtype=table.dtype,
            weighted=table.weighted,
            bag_spread=table.bag_spread,
            placement=table.placement,
            cache_share=table.cache_share,
        )

    def _extra(self, table: Table, part: TablePart, lookup: TableLookup) -> tuple[float, ...]:
        columns, node_columns, gradient = float(part.width * table.features), 0.0, 0.0
        if part.replicated:
            columns, gradient = 0.0, 4.0 * part.width * part.height
        elif part.in_node:
            # Partial sums are added up inside the node; one share of them then leaves each rank.
            columns, node_columns = columns / self.ranks_per_node, columns
        memory = part_bytes(table, part.width, part.height, self.optimizer, replicated=part.replicated)
        # Parts that are summed inside their node arrive whole.
        cut = 0.0 if part.in_node else float(part.width < table.dim or part.height < table.rows)
        return columns, node_columns, lookup.index_words, float(lookup.batch), gradient, memory, cut
