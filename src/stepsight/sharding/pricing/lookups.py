"""Embedding models as sums over parts of tables, for kernels that fuse them and ones that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepsight.estimate import Estimates, FloatArray
from stepsight.kernels.embedding.model import EmbeddingModel, TableCosts
from stepsight.program.job import Kernel
from stepsight.tables.lookup import Lookup, TableLookup

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
