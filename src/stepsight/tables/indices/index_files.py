"""Index files: the lookups of real batches, table by table, as a stream that is never loaded whole.

Formats: ``.npz``/``.pt`` with ``indices``, ``offsets`` and ``lengths`` (tables × batch; a tuple
in that order, as in dlrm_datasets), ``.npy`` (one table's indices, or samples × tables), and
Criteo-style text (tab- or comma-separated, hexadecimal or decimal columns, one lookup each).
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray, IntArray
from stepsight.inputs import check_limit, unpacked
from stepsight.tables.indices.arrays_on_disk import AnyArray, arrays_in
from stepsight.tables.indices.reuse import exact_stats, mean_stats
from stepsight.tables.indices.stats import REUSE_EDGES, IndexStats

if TYPE_CHECKING:
    from stepsight.tables.indices.distributions import IndexDistribution

CHUNK = 1 << 21
"""Lookups read at once."""
BATCHES_SAMPLED = 8
"""A batch's statistics are the mean over this many stretches of the file."""
MOST_EXPONENT, _HALVINGS = 3.0, 24
"""Bounds of the search for a power law."""
_LINES = 1 << 16
"""Lines of text read at once."""
_CRITEO_COLUMNS, _CRITEO_DENSE = 40, 14
"""Criteo's click logs: a label, 13 counts, 26 categories."""


@dataclass(frozen=True, slots=True, eq=False)
class TableStream:
    """The lookups of one table in time order, and the size of every bag (empty: all of one lookup).

    ``labels``: what text files hold, which need not be row numbers.
    """

    indices: AnyArray
    lengths: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: bool = False

    @property
    def lookups(self) -> int:
        return len(self.indices)

    @property
    def bags(self) -> int:
        return len(self.lengths) or self.lookups

    @property
    def pooling(self) -> float:
        return self.lookups / max(self.bags, 1)

    def pooling_quantiles(self, at: tuple[float, ...] = (0.0, 0.5, 0.95, 1.0)) -> FloatArray:
        """Quantiles of the pooling factor over bags."""
        return np.quantile(self.lengths if len(self.lengths) else np.ones(1), at)

    def first_bags(self, bags: int) -> TableStream:
        """The same table for the first this many bags only."""
        if not len(self.lengths):
            return TableStream(self.indices[:bags])
        lengths = self.lengths[:bags]
        return TableStream(self.indices[: int(lengths.sum())], lengths)

    def window(self, first: int, count: int) -> IntArray:
        return np.asarray(self.indices[first : first + count], dtype=np.int64)

    def chunks(self, first: int = 0, count: int | None = None) -> Iterator[IntArray]:
        """The lookups from ``first`` on, a few million at a time."""
        end = self.lookups if count is None else min(self.lookups, first + count)
        for start in range(first, end, CHUNK):
            yield self.window(start, min(CHUNK, end - start))


@dataclass(frozen=True, slots=True, eq=False)
class IndexFile:
    """An index file: one stream per table."""

    path: str
    tables: tuple[TableStream, ...]

    def table(self, number: int) -> TableStream:
        if not 0 <= number < len(self.tables):
            raise InputError(self.path, f"no table {number}", f"it has {len(self.tables)}, numbered from 0")
        return self.tables[number]


@lru_cache(maxsize=16)
def open_index_file(path: str) -> IndexFile:
    """Open an index file; only its small parts (bag sizes) are read now."""
    name = path.removesuffix(".gz")
    if name.endswith((".csv", ".tsv", ".txt")):
        return IndexFile(path, _text_tables(Path(path)))
    if not name.endswith((".npz", ".npy", ".pt", ".pth")):
        raise InputError(path, "not a known kind of index file", "give .npz, .npy, .pt, .csv, .tsv or .txt")
    arrays = arrays_in(path)
    named = {
        key: arrays[str(i)] for i, key in enumerate(("indices", "offsets", "lengths")) if str(i) in arrays
    }
    return IndexFile(path, _tables(path, {**arrays, **named}))


def batch_stats(path: str, table: int, rows: int, lookups: float) -> IndexStats:
    """Statistics of a batch of this many lookups, taken from an index file."""
    stream = open_index_file(path).table(table)
    wanted = max(1, round(lookups))
    if stream.lookups == 0:
        raise InputError(path, f"table {table} has no lookups", "choose another table")
    _check_rows(path, table, rows)
    if wanted > stream.lookups:
        return _law_of(path, table, rows).stats(rows, lookups)
    samples = min(BATCHES_SAMPLED, stream.lookups // wanted)
    starts = np.linspace(0, stream.lookups - wanted, samples).astype(np.int64)
    return mean_stats(
        [exact_stats(partial(stream.chunks, int(first), wanted), wanted, rows) for first in starts]
    )


@lru_cache(maxsize=4096)
def _extent(path: str, table: int) -> tuple[int, int]:
    """The smallest and the largest row number of a table."""
    stream = open_index_file(path).table(table)
    ends = [(int(chunk.min()), int(chunk.max())) for chunk in stream.chunks() if len(chunk)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _check_rows(path: str, table: int, rows: int) -> None:
    """Refuse row numbers that a table of this many rows does not have."""
    if open_index_file(path).table(table).labels:
        return
    low, high = _extent(path, table)
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise InputError(
            path, f"table {table} looks up row {wrong} of a table of {rows} rows",
            f"set rows to at least {high + 1}, or check the file" if low >= 0 else "row numbers start at 0",
        )  # fmt: skip


@lru_cache(maxsize=1024)
def _law_of(path: str, table: int, rows: int) -> IndexDistribution:
    """The power law with as many distinct rows for the file's lookups as it has: what a batch larger than the
    file is drawn by. The file alone cannot name the rows that only a larger batch would reach."""
    from stepsight.tables.indices.distributions import IndexDistribution

    stream = open_index_file(path).table(table)
    seen = exact_stats(stream.chunks, stream.lookups, rows).unique_rows
    low, high = 0.0, MOST_EXPONENT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = IndexDistribution.zipf(middle).stats(rows, stream.lookups).unique_rows > seen
        low, high = (middle, high) if more else (low, middle)
    return IndexDistribution.zipf(round(low, 3))


def extrapolation(path: str, table: int, rows: int, lookups: float) -> str:
    """How a batch larger than its index file was continued; empty where the file holds one."""
    held = open_index_file(path).table(table).lookups
    if round(lookups) <= held:
        return ""
    exponent = _law_of(path, table, rows).exponent
    return (
        f"{path} holds {held:,} lookups of table {table}, a batch {round(lookups):,}: continued by the power "
        f"law with the file's distinct rows (Zipf {exponent:g})"
    )


def _tables(path: str, arrays: dict[str, AnyArray]) -> tuple[TableStream, ...]:
    if "indices" not in arrays:
        raise InputError(path, f"has no array 'indices' (only {', '.join(arrays) or 'none'})", "name it so")
    indices = arrays["indices"]
    for name in ("indices", "lengths", "offsets"):
        if name in arrays and not np.issubdtype(arrays[name].dtype, np.integer):
            raise InputError(
                path, f"{name!r} is {arrays[name].dtype}, not an integer array", "save row numbers and counts"
            )
    if indices.ndim not in (1, 2) or 0 in indices.shape:
        raise InputError(
            path, f"'indices' has the shape {indices.shape}", "save one list, or samples × tables, not empty"
        )
    if indices.ndim == 2:
        return tuple(TableStream(indices[:, i]) for i in range(indices.shape[1]))
    lengths = arrays.get("lengths")
    if lengths is None and "offsets" in arrays:
        offsets = np.asarray(arrays["offsets"], dtype=np.int64).reshape(-1)
        if len(offsets) and offsets[-1] != len(indices):
            offsets = np.append(offsets, len(indices))
        lengths = np.diff(offsets)[None, :]
    if lengths is None:
        return (TableStream(indices.reshape(-1)),)
    sizes = np.atleast_2d(np.asarray(lengths, dtype=np.int64))
    if sizes.ndim != 2 or sizes.size == 0:
        raise InputError(path, f"'lengths' has the shape {sizes.shape}", "save tables × batch")
    if int(sizes.min()) < 0:
        raise InputError(
            path, f"a bag of {int(sizes.min())} lookups", "'lengths' and steps of 'offsets' are 0 or more"
        )
    ends = np.cumsum(sizes.sum(axis=1))
    if int(ends[-1]) != len(indices):
        raise InputError(
            path, f"the bags hold {int(ends[-1])} lookups but 'indices' {len(indices)}", "check 'lengths'"
        )
    starts = np.concatenate([[0], ends[:-1]])
    return tuple(
        TableStream(indices[a:b], size) for a, b, size in zip(starts, ends, sizes, strict=True)
    )  # fmt: skip


def _open_text(path: Path) -> IO[str]:
    if not path.is_file():
        raise InputError(str(path), "no such index file", "check the path")
    size = path.stat().st_size
    if path.suffix != ".gz":
        check_limit(size, "EXPANDED_BYTES", str(path), "its size in bytes")
        return path.open(encoding="utf-8", newline="")
    with gzip.open(path, "rb") as packed:
        return io.TextIOWrapper(unpacked(cast("IO[bytes]", packed), str(path), size), "utf-8", newline="")


def _text_tables(path: Path) -> tuple[TableStream, ...]:
    parts: list[list[IntArray]] = []
    try:
        with _open_text(path) as file:
            first = file.readline()
            delimiter = "\t" if "\t" in first else ","
            columns = first.rstrip("\r\n").split(delimiter)
            skip = _CRITEO_DENSE if len(columns) == _CRITEO_COLUMNS else 0
            if not _is_header(columns):
                file.seek(0)
            parts = [[] for _ in columns[skip:]]
            rows = csv.reader(file, delimiter=delimiter)
            line = 1
            while lines := list(islice(rows, _LINES)):
                where = f"{path}, lines {line}–{line + len(lines) - 1}"
                for i, column in enumerate(list(zip(*lines, strict=False))[skip:]):
                    parts[i].append(_labels(column, f"{where}, column {skip + i + 1}"))
                line += len(lines)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), f"cannot be read ({error})", "give plain or gzipped UTF-8 text") from None
    return tuple(TableStream(np.concatenate([np.zeros(0, dtype=np.int64), *p]), labels=True) for p in parts)


def _is_header(columns: list[str]) -> bool:
    return any(c.strip() and not _is_number(c) for c in columns)


def _is_number(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def _labels(column: tuple[str, ...], where: str) -> IntArray:
    """Row labels of a text column; an empty cell is a label of its own."""
    try:
        return np.array([int(cell, 16) if cell else -1 for cell in column], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(
            where, f"not a row number ({error})", "give decimal or hexadecimal integers"
        ) from None


CURVE_POINTS = 24
"""Cache sizes at which the hit rate is stated, spread from one row to all of them."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """One table of an index file (or one batch of it).

    ``pooling`` are the least, median, 95th percentile and largest bag; ``reuse`` the shares of
    distinct rows in the 17 bins; ``hit_rate`` is that of a cache of ``cache_rows`` rows.
    """

    table: int
    bags: int
    lookups: int
    mean_pooling: float
    pooling: tuple[float, float, float, float]
    unique_rows: int
    largest_row: int
    mean_reuse: float
    reuse: tuple[float, ...]
    cache_rows: tuple[float, ...]
    hit_rate: tuple[float, ...]


def summarise(table: int, stream: TableStream) -> TableSummary:
    """Exact statistics of all lookups of one table."""
    stats = exact_stats(stream.chunks, stream.lookups)
    cache_rows = np.geomspace(1, max(stats.unique_rows, 2), CURVE_POINTS)
    least, median, high, most = (float(v) for v in stream.pooling_quantiles())
    return TableSummary(
        table=table,
        bags=stream.bags,
        lookups=stream.lookups,
        mean_pooling=stream.pooling,
        pooling=(least, median, high, most),
        unique_rows=int(stats.unique_rows),
        largest_row=int(max(chunk.max() for chunk in stream.chunks())),
        mean_reuse=stats.mean_reuse,
        reuse=tuple(stats.reuse.tolist()),
        cache_rows=tuple(cache_rows.tolist()),
        hit_rate=tuple(stats.hit_rate(cache_rows).tolist()),
    )


def reuse_labels() -> list[str]:
    """The 17 bins in words: 1, 2, 3–4, …"""
    labels = ["1", "2"]
    labels += [f"{low + 1}–{high}" for low, high in pairwise(REUSE_EDGES[1:])]
    return [*labels, f"> {REUSE_EDGES[-1]}"]
