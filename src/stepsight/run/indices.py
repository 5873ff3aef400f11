"""Random lookups that follow a table's index distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepsight.estimate import IntArray
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import TableLookup


def sample_bags(part: TableLookup, generator: np.random.Generator) -> tuple[IntArray, IntArray, IntArray]:
    """Indices, bag offsets (one more than bags) and the bag of each lookup.

    Bags hold ``pooling`` lookups; a fractional pooling is mixed from its two neighbours so
    that the number of lookups is exactly the batch's mean.
    """
    total = round(part.lookups)
    lengths = np.full(part.batch, total // part.batch, dtype=np.int64)
    lengths[generator.permutation(part.batch)[: total - int(lengths.sum())]] += 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bags = np.repeat(np.arange(part.batch, dtype=np.int64), lengths)
    return sample_rows(part.indices, part.rows, total, generator), offsets, bags


def sample_rows(
    distribution: IndexDistribution, rows: int, count: int, generator: np.random.Generator
) -> IntArray:
    """``count`` row numbers; popular rows are spread over the table, as hashing spreads them."""
    if distribution.kind == "file":
        return _from_file(distribution, rows, count)
    groups, share = distribution.popularity(rows)
    weight = groups * share
    drawn = generator.choice(len(groups), size=count, p=weight / weight.sum())
    first = np.concatenate([[0], np.cumsum(groups)[:-1]])
    within = generator.random(count) * groups[drawn]
    popularity_rank = np.minimum((first[drawn] + within).astype(np.int64), rows - 1)
    return _scattered(popularity_rank, rows)


def _scattered(ranks: npt.NDArray[np.int64], rows: int) -> IntArray:
    """A fixed permutation of the rows: multiplication by a number coprime to their count."""
    step = int(rows * 0.6180339887) | 1
    while np.gcd(step, rows) != 1:
        step += 2
    return (ranks * step) % rows


def _from_file(distribution: IndexDistribution, rows: int, count: int) -> IntArray:
    from stepsight.kernels.embedding.index_files import open_index_file

    recorded = open_index_file(distribution.path).table(distribution.table).window(0, count)
    return np.resize(recorded % rows, count)
