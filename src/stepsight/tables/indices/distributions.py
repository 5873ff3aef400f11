"""Which rows a batch asks for: named distributions, or the user's own index file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

import numpy as np

from stepsight.errors import InputError, StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.tables.indices.stats import IndexStats, stats_of_popularity

_HOW = (
    'write "uniform", { uniform = "ordered" }, { zipf = 1.05 }, '
    '{ hot = { fraction = 0.01, probability = 0.9 } } or { file = "x.npz" }'
)
_SINGLE_RANKS = 64
"""A Zipf law's most popular rows are kept one by one, the rest in groups of similar popularity."""
_GROUPS_PER_OCTAVE = 8


@dataclass(frozen=True, slots=True)
class IndexDistribution:
    """How the lookups of one table fall on its rows.

    ``kind``: uniform, zipf (share of the r-th row ∝ r^-exponent), hot (a ``fraction`` of the
    rows receives a lookup with ``probability``, both parts uniform), file (table ``table``
    of the index file at ``path``). Row labels mean nothing: only how often rows recur does,
    unless the lookups of each bag are ``ordered`` by row (uniform only), as those of DLRM's
    generator of random batches: bags then walk through the table side by side.

    ``whole_rows``: of the table, where this is a part of its rows. Rows are spread over ranks without regard
    to how popular they are, so a part that holds a share of the rows sees that share of every popularity: the
    same reuse, the share of the distinct rows, and a cache of c rows serves it as one of c / share rows would
    serve the whole table.
    """

    kind: str
    exponent: float = 0.0
    fraction: float = 1.0
    probability: float = 1.0
    path: str = ""
    table: int = 0
    ordered: bool = False
    whole_rows: int = 0

    @classmethod
    def uniform(cls, *, ordered: bool = False) -> IndexDistribution:
        return cls("uniform", ordered=ordered)

    @classmethod
    def zipf(cls, exponent: float) -> IndexDistribution:
        if not 0 <= exponent <= 10:
            raise StepsightError(f"a Zipf exponent lies between 0 (uniform) and 10, not {exponent}")
        return cls("zipf", exponent=float(exponent))

    @classmethod
    def hot(cls, fraction: float, probability: float) -> IndexDistribution:
        if not (0 < fraction <= 1 and 0 <= probability <= 1):
            raise StepsightError(
                f"a hot set needs 0 < fraction ≤ 1 and 0 ≤ probability ≤ 1, not {fraction}, {probability}"
            )
        return cls("hot", fraction=float(fraction), probability=float(probability))

    @classmethod
    def file(cls, path: str, table: int = 0) -> IndexDistribution:
        return cls("file", path=str(path), table=table)

    @classmethod
    def parse(cls, value: object, where: str) -> IndexDistribution:
        """Read the ``indices`` value of a workload's table; ``where`` names it in errors."""
        try:
            if value is None or value == "uniform":
                return cls.uniform()
            if isinstance(value, Mapping):
                keys = set(value) - {"table"}
                if dict(value) == {"uniform": "ordered"}:
                    return cls.uniform(ordered=True)
                if keys == {"zipf"}:
                    return cls.zipf(float(value["zipf"]))
                if keys == {"hot"}:
                    return _parse_hot(value["hot"], where)
                if keys == {"file"}:
                    return cls.file(str(value["file"]), int(value.get("table", 0)))
        except (TypeError, ValueError) as error:
            raise InputError(where, f"not an index distribution: {value!r} ({error})", _HOW) from None
        except InputError:
            raise
        except StepsightError as error:
            raise InputError(where, str(error), _HOW) from None
        raise InputError(where, f"not an index distribution: {value!r}", _HOW)

    @property
    def value(self) -> object:
        """What a workload file writes for it; `parse` reads it back."""
        if self.kind == "zipf":
            return {"zipf": self.exponent}
        if self.kind == "hot":
            return {"hot": {"fraction": self.fraction, "probability": self.probability}}
        if self.ordered:
            return {"uniform": "ordered"}
        return {"file": self.path, "table": self.table} if self.kind == "file" else self.kind

    @property
    def label(self) -> str:
        """How a report names it."""
        if self.kind == "zipf":
            return f"zipf {self.exponent:g}"
        if self.kind == "hot":
            return f"hot {self.fraction:g} of rows, {self.probability:g} of lookups"
        if self.ordered:
            return "uniform, ordered"
        return f"{self.path}#{self.table}" if self.kind == "file" else self.kind

    def stats(self, rows: int, lookups: float) -> IndexStats:
        """What ``lookups`` lookups of one batch look like on a table of ``rows`` rows (cached)."""
        if not self.whole_rows:
            return _stats(self, max(int(rows), 1), float(lookups))
        share = rows / self.whole_rows
        whole = replace(self, whole_rows=0, ordered=False).stats(self.whole_rows, round(lookups / share, 3))
        return replace(
            whole,
            rows=rows,
            lookups=whole.lookups * share,
            unique_rows=whole.unique_rows * share,
            capacity_rows=whole.capacity_rows * share,
            window=whole.window * share,
        )

    def part_of(self, whole_rows: int) -> IndexDistribution:
        """The same on a part of a table with this many rows."""
        return replace(self, whole_rows=whole_rows)

    def popularity(self, rows: int) -> tuple[FloatArray, FloatArray]:
        """Rows in groups of equal popularity: how many, and the share of lookups of each one."""
        if self.kind == "zipf" and self.exponent > 0:
            return _zipf_popularity(rows, self.exponent)
        if self.kind == "hot":
            hot_rows = max(1.0, round(self.fraction * rows))
            if hot_rows < rows:
                counts = np.array([hot_rows, rows - hot_rows])
                shares = np.array([self.probability, 1 - self.probability]) / counts
                return counts[shares > 0], shares[shares > 0]
        if self.kind == "file":
            raise StepsightError("the popularity of an index file's rows is measured, not named; ask stats()")
        return np.array([float(rows)]), np.array([1.0 / rows])


def _parse_hot(value: object, where: str) -> IndexDistribution:
    if isinstance(value, Mapping):
        return IndexDistribution.hot(float(value["fraction"]), float(value["probability"]))
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return IndexDistribution.hot(float(value[0]), float(value[1]))
    raise InputError(where, f"not a hot set: {value!r}", _HOW)


def _zipf_popularity(rows: int, exponent: float) -> tuple[FloatArray, FloatArray]:
    single = min(rows, _SINGLE_RANKS)
    edges = np.arange(1, single + 2, dtype=np.float64)
    if rows > single:
        octaves = np.log2((rows + 1) / (single + 1))
        groups = np.geomspace(single + 1, rows + 1, 2 + int(octaves * _GROUPS_PER_OCTAVE))
        edges = np.unique(np.concatenate([edges, np.round(groups[1:])]))
    first, after = edges[:-1], edges[1:]
    counts = after - first
    weight = np.where(counts == 1, first**-exponent, _power_sum(first, after, exponent))
    return counts, weight / weight.sum() / counts


def _power_sum(first: FloatArray, after: FloatArray, exponent: float) -> FloatArray:
    """Sum of r^-exponent over first ≤ r < after, by the midpoint integral."""
    low, high = first - 0.5, after - 0.5
    if abs(exponent - 1) < 1e-9:
        return np.asarray(np.log(high / low))
    return np.asarray((high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent))


@lru_cache(maxsize=65536)
def _stats(distribution: IndexDistribution, rows: int, lookups: float) -> IndexStats:
    if distribution.kind == "file":
        from stepsight.tables.indices.index_files import batch_stats

        return batch_stats(distribution.path, distribution.table, rows, lookups)
    counts, shares = distribution.popularity(rows)
    return stats_of_popularity(rows, lookups, counts, shares)


UNKNOWN_INDICES = IndexDistribution.zipf(0.9)
"""What stands in where a trace does not tell which rows were asked for. Basis: few runs. Forwards on A100 of
two sources are closest with 0.8 to 0.9, whichever of them is left out (`python -m lab score embedding`)."""


_SPREAD = 0.6180339887498949
"""Popular rows are spread over the table by a step of the golden ratio times its rows."""


def draw_indices(
    distribution: IndexDistribution, rows: int, lookups: int, rng: np.random.Generator
) -> IntArray:
    """``lookups`` row numbers in time order, independent draws (an index file: a random stretch of it)."""
    if distribution.kind == "file":
        from stepsight.tables.indices.index_files import open_index_file

        stream = open_index_file(distribution.path).table(distribution.table)
        first = int(rng.integers(0, max(stream.lookups - lookups, 0) + 1))
        taken = stream.window(first, lookups)
        return np.resize(taken, lookups).astype(np.int64) % rows
    counts, shares = distribution.popularity(rows)
    first_rank = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    cumulative = np.cumsum(counts * shares)
    group = np.searchsorted(cumulative, rng.random(lookups) * cumulative[-1], side="right")
    group = np.minimum(group, len(counts) - 1)
    rank = first_rank[group] + (rng.random(lookups) * counts[group]).astype(np.int64)
    return np.asarray(rank * _step(rows) % rows)


def _step(rows: int) -> int:
    """A step that visits every row once."""
    step = max(1, int(rows * _SPREAD))
    while gcd(step, rows) != 1:
        step += 1
    return step
