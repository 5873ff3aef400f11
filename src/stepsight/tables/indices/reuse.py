"""Exact reuse of a stream of lookups, in one or few passes and bounded memory.

The gap of a lookup is how many lookups ago its row was last asked for. From the gaps alone
follow the distinct rows in a window of any length (the footprint) and from these the hit rate
of an LRU cache of any size: a lookup hits when its gap is no longer than the window whose
footprint fills the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.tables.indices.stats import IndexStats, hit_curves, reuse_bins

_WINDOWS = 192
"""Points of the curve of gaps."""
_MERGE_AT = 1 << 22
"""Lookups gathered before they are merged into the rows seen so far."""
LOOKUPS_PER_PASS = 8_000_000
"""A pass keeps 32 bytes per distinct row and three times that while merging: under 1 GB at this size."""


Stream = Callable[[], Iterable[IntArray]]


@dataclass(frozen=True, slots=True, eq=False)
class GapTotals:
    """Gaps by length, and how often rows occur.

    Bin i counts and sums the gaps above edge i-1 up to edge i; the wrap-around gap of a row
    runs from its last lookup to its first one in a replay. ``rows_with[i]`` rows occur
    ``occurrences[i]`` times. Totals over disjoint sets of rows add up.
    """

    edges: IntArray
    gap_counts: FloatArray
    gap_sums: FloatArray
    wrap_counts: FloatArray
    wrap_sums: FloatArray
    occurrences: IntArray
    rows_with: IntArray

    @property
    def unique_rows(self) -> int:
        return int(self.rows_with.sum())

    def __add__(self, other: GapTotals) -> GapTotals:
        return GapTotals(
            self.edges,
            self.gap_counts + other.gap_counts,
            self.gap_sums + other.gap_sums,
            self.wrap_counts + other.wrap_counts,
            self.wrap_sums + other.wrap_sums,
            np.concatenate([self.occurrences, other.occurrences]),
            np.concatenate([self.rows_with, other.rows_with]),
        )


class GapCounter:
    """Takes a stream piece by piece; keeps a histogram of gaps and, per distinct row, four numbers."""

    def __init__(self, lookups: int) -> None:
        self._lookups = lookups
        self._edges = np.unique(
            np.concatenate([[0], np.geomspace(1, max(lookups, 2), _WINDOWS).round()])
        ).astype(np.int64)  # fmt: skip
        self._gap_counts = np.zeros(len(self._edges) + 1)
        self._gap_sums = np.zeros(len(self._edges) + 1)
        self._rows = np.zeros(0, dtype=np.int64)
        self._first = np.zeros(0, dtype=np.int64)
        self._last = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._waiting: list[tuple[IntArray, IntArray]] = []
        self._waiting_size = 0

    def add(self, rows: IntArray, positions: IntArray) -> None:
        """The next lookups in time order, at their positions in the whole stream."""
        self._waiting.append((rows, positions))
        self._waiting_size += len(rows)
        if self._waiting_size >= max(_MERGE_AT, len(self._rows)):
            self._merge()

    def finish(self) -> GapTotals:
        """Everything that was counted."""
        self._merge()
        around = self._first - self._last + self._lookups
        bins, size = np.searchsorted(self._edges, around, side="left"), len(self._gap_counts)
        occurrences, rows_with = np.unique(self._counts, return_counts=True)
        return GapTotals(
            self._edges,
            self._gap_counts,
            self._gap_sums,
            np.bincount(bins, minlength=size).astype(np.float64),
            np.bincount(bins, weights=around, minlength=size).astype(np.float64),
            occurrences,
            rows_with,
        )

    def _merge(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate([self._rows, *(r for r, _ in self._waiting)])
        times = np.concatenate([self._last, *(p for _, p in self._waiting)])
        known = len(self._rows)
        self._waiting, self._waiting_size = [], 0
        order = np.argsort(rows, kind="stable")
        rows, times = rows[order], times[order]
        starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        gaps = np.diff(times)
        self._count_gaps(np.delete(gaps, starts[1:] - 1))
        ends = np.append(starts[1:], len(rows)) - 1
        sizes = ends - starts + 1
        leaders = order[starts]  # where a row was known before, it comes first in its group
        old = leaders < known
        first, counts = times[starts], sizes.copy()
        if known:
            first[old] = self._first[leaders[old]]
            counts[old] += self._counts[leaders[old]] - 1
        self._rows, self._first, self._last, self._counts = rows[starts], first, times[ends], counts

    def _count_gaps(self, gaps: IntArray) -> None:
        bins = np.searchsorted(self._edges, gaps, side="left")
        size = len(self._gap_counts)
        self._gap_counts += np.bincount(bins, minlength=size)
        self._gap_sums += np.bincount(bins, weights=gaps, minlength=size)


def count_gaps(stream: Stream, lookups: int) -> GapTotals:
    """Go over a stream of ``lookups`` lookups, once for every 8 million of them."""
    passes = -(-max(lookups, 1) // LOOKUPS_PER_PASS)
    totals: GapTotals | None = None
    for number in range(passes):
        counter, position = GapCounter(lookups), 0
        for piece in stream():
            positions = np.arange(position, position + len(piece))
            position += len(piece)
            if passes > 1:
                mine = piece % passes == number
                piece, positions = piece[mine], positions[mine]
            counter.add(piece, positions)
        totals = counter.finish() if totals is None else totals + counter.finish()
    assert totals is not None  # there is at least one pass
    return totals


def exact_stats(stream: Stream, lookups: int, rows: int | None = None) -> IndexStats:
    """Statistics of exactly this stream; ``stream`` is called for every pass over it."""
    t = count_gaps(stream, lookups)
    unique = t.unique_rows
    counts, sums = t.gap_counts + t.wrap_counts, t.gap_sums + t.wrap_sums
    # Distinct rows in a window of length w, averaged over all (cyclic) windows: a row is missing
    # from g - w of the windows that start within one of its gaps g.
    longer, longer_sum = counts.sum() - np.cumsum(counts)[:-1], sums.sum() - np.cumsum(sums)[:-1]
    footprint = np.maximum.accumulate(unique - (longer_sum - t.edges * longer) / lookups)
    cold, replay = np.cumsum(t.gap_counts)[:-1] / lookups, np.cumsum(counts)[:-1] / lookups
    return IndexStats(
        rows=rows if rows is not None else unique,
        lookups=float(lookups),
        unique_rows=float(unique),
        hottest=float(t.occurrences.max(initial=1)),
        reuse=reuse_bins(t.occurrences, t.rows_with),
        **hit_curves(t.edges.astype(np.float64), footprint, cold, replay),
    )


def mean_stats(samples: Sequence[IndexStats]) -> IndexStats:
    """The mean of several batches of equal size."""
    first = samples[0]
    if len(samples) == 1:
        return first
    return IndexStats(
        rows=first.rows,
        lookups=first.lookups,
        unique_rows=float(np.mean([s.unique_rows for s in samples])),
        hottest=float(np.mean([s.hottest for s in samples])),
        reuse=np.mean([s.reuse for s in samples], axis=0),
        capacity_rows=np.mean([s.capacity_rows for s in samples], axis=0),
        cold_hits=np.mean([s.cold_hits for s in samples], axis=0),
        replay_hits=np.mean([s.replay_hits for s in samples], axis=0),
        window=np.mean([s.window for s in samples], axis=0),
    )
