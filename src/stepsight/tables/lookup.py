"""What an embedding kernel is asked to do: which tables, how many lookups, which rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsight.tables.indices.distributions import IndexDistribution

EMBEDDING_BAG, FBGEMM = "embedding_bag", "fbgemm"
"""Operators of a CPU: one torch call per table, or FBGEMM's table-batched one for all of them."""
SORTED, SCATTERED, INDEX_ADD = "sorted", "scattered", "index_add"
"""How a backward updates rows: indices are sorted and each distinct row is written once (FBGEMM,
nn.EmbeddingBag); every lookup updates its row as it comes (table-batched kernels of 2020); or the gradient is
a sparse tensor that ATen's index_add_ adds value by value."""
FBGEMM_OPTIMIZERS = {
    "sgd": "EXACT_SGD",
    "adagrad": "EXACT_ADAGRAD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
}
"""Fused updates that FBGEMM has for a CPU (release 1.8)."""


@dataclass(frozen=True, slots=True)
class TableLookup:
    """One table (or one column slice of one) in one lookup.

    ``batch`` bags of ``pooling`` lookups on average, of different length by ``bag_spread`` (standard
    deviation of ln(lookups)); ``indices`` says which rows they hit. ``placement`` and ``cache_share`` are
    those of `stepsight.tables.table.Table`.
    """

    rows: int
    dim: int
    batch: int
    pooling: float
    indices: IndexDistribution
    dtype: str = "fp32"
    weighted: bool = False
    bag_spread: float = 0.0
    placement: str = "device"
    cache_share: float = 1.0

    @property
    def lookups(self) -> float:
        return self.batch * self.pooling

    @property
    def index_words(self) -> float:
        """8-byte words that name the rows: an index a lookup, and half a word for its weight."""
        return self.lookups * (1.5 if self.weighted else 1.0)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A fused lookup over many tables; ``optimizer`` is the fused update of its backward.

    ``optimizer``: none, sgd, adagrad, rowwise_adagrad, adam. ``fused`` is False for one
    ``nn.EmbeddingBag`` call per table. The order of the tables means nothing.
    ``update``: how the backward writes rows (`SORTED`, `SCATTERED`, `INDEX_ADD`). ``replayed``: the same
    batch has just gone through the caches, as in a micro-benchmark; in a training step they start cold.
    ``part``: the share of the whole that one kernel does, where a trace shows a backward as many.
    ``output_dtype``: of the pooled vectors and their gradients. ``operator``: what looks up on a CPU; empty
    for the one that its platform was calibrated with.
    """

    tables: tuple[TableLookup, ...]
    optimizer: str = "sgd"
    fused: bool = True
    update: str = SORTED
    replayed: bool = False
    output_dtype: str = "fp32"
    part: float = 1.0
    operator: str = ""
