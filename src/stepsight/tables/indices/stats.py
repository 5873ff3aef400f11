"""What a batch's lookups of one table look like: unique rows, reuse, hit rate by cache size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray

REUSE_BINS = 17
"""Bins of the reuse factor: a row looked up 1, 2, 3–4, 5–8, …, 2^14+1–2^15 times, and more (METHOD §5)."""
REUSE_EDGES: tuple[int, ...] = tuple(2**k for k in range(REUSE_BINS - 1))
"""Upper end of every bin but the last."""
_WINDOWS = 96
"""Points of a hit-rate curve; more change no hit rate by a tenth of a point."""
_EXACT_POISSON = 16
"""Counts up to here are summed exactly, larger ones by the Wilson–Hilferty normal approximation."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexStats:
    """One table's lookups in one batch.

    ``hottest`` is how often the most popular row is looked up, ``reuse`` the share of the
    distinct rows in each of the 17 bins. The curve says, for
    an LRU cache of ``capacity_rows`` rows, which share of the lookups it serves: ``cold_hits``
    when it starts empty, ``replay_hits`` when the same batch has just gone through it.
    ``window`` lookups in a row fill it.
    """

    rows: int
    lookups: float
    unique_rows: float
    hottest: float
    reuse: FloatArray
    capacity_rows: FloatArray
    cold_hits: FloatArray
    replay_hits: FloatArray
    window: FloatArray

    def hit_rate(self, capacity_rows: npt.ArrayLike, *, replay: bool = False) -> FloatArray:
        """Share of lookups that an LRU cache of this many rows serves (any shape of capacities)."""
        capacity = np.asarray(capacity_rows, dtype=np.float64)
        curve = self.replay_hits if replay else self.cold_hits
        return np.interp(capacity, self.capacity_rows, curve, left=0.0, right=float(curve[-1]))

    def share_hit_rate(self, capacity_rows: float, lookups: float) -> float:
        """The same of a cache that starts empty and sees only this many of the lookups, drawn in the same
        way."""
        window, hits = self.window[:-1], self.replay_hits[:-1]
        longest = min(float(np.interp(capacity_rows, self.capacity_rows[:-1], window)), lookups)
        end = float(np.interp(longest, window, hits))
        before = max(int(np.searchsorted(window, longest)) - 1, 0)
        filling = float(_hits_while_filling(self)[before])
        filling += (longest - float(window[before])) * (float(hits[before]) + end) / 2
        return (filling + (lookups - longest) * end) / lookups

    def missing_rows(self, capacity_rows: float, lookups: float) -> float:
        """Distinct rows of ``lookups`` further lookups that an LRU cache of this many rows does not hold.

        The cache holds the rows of the last T lookups, T being the window in which as many distinct rows
        occur as it has places: those that occur first in the next ones are U(T + lookups) − U(T).
        """
        filled, window = self.capacity_rows[:-1], self.window[:-1]
        if capacity_rows >= self.rows:
            return 0.0
        longest = float(np.interp(capacity_rows, filled, window))
        before, after = np.interp([longest, min(longest + lookups, window[-1])], window, filled)
        beyond = max(longest + lookups - window[-1], 0.0)  # the curve goes on as it ended, up to all rows
        slope = (filled[-1] - filled[-2]) / max(window[-1] - window[-2], 1e-12)
        return float(min(after - before + beyond * slope, self.rows - before))

    @property
    def mean_reuse(self) -> float:
        """Lookups per distinct row."""
        return self.lookups / max(self.unique_rows, 1e-12)


@lru_cache(maxsize=4096)
def _hits_while_filling(stats: IndexStats) -> FloatArray:
    """Lookups that a cache has served by the end of each window."""
    window, hits = stats.window[:-1], stats.replay_hits[:-1]
    return np.concatenate([[0.0], np.cumsum(np.diff(window) * (hits[1:] + hits[:-1]) / 2)])


def stats_of_popularity(rows: int, lookups: float, counts: FloatArray, shares: FloatArray) -> IndexStats:
    """Statistics of ``lookups`` independent draws; ``counts[i]`` rows have ``shares[i]`` of them each.

    The hit rate is the Che approximation carried over to a stream of finite length: a row is
    in the cache when it occurred within the last T lookups, T being the window in which as
    many distinct rows occur as the cache holds.
    """
    lookups = max(float(lookups), 1.0)
    with np.errstate(divide="ignore"):
        rate = -np.log1p(-np.minimum(shares, 1.0))[:, None]
    window = np.concatenate([[0.0], np.geomspace(min(1.0, lookups / 2), lookups, _WINDOWS)])
    with np.errstate(invalid="ignore"):
        seen = np.where(window > 0, -np.expm1(-rate * window), 0.0)
    weight = (counts * shares)[:, None]
    filled = counts @ seen
    cold = np.sum(
        weight * (window - seen / shares[:, None] + (lookups - window) * seen), axis=0
    ) / lookups  # fmt: skip
    replay = np.sum(weight * seen, axis=0)
    return IndexStats(
        rows=rows,
        lookups=lookups,
        unique_rows=float(filled[-1]),
        hottest=max(float(shares.max()) * lookups, 1.0),
        reuse=_poisson_reuse(counts, shares * lookups),
        **hit_curves(window, filled, cold, replay),
    )


def hit_curves(
    window: FloatArray, filled: FloatArray, cold: FloatArray, replay: FloatArray
) -> dict[str, FloatArray]:
    """The curves of `IndexStats`; a cache for all distinct rows of a batch serves all of its replay."""
    return {
        "capacity_rows": np.append(filled, filled[-1] * (1 + 1e-9)),
        "cold_hits": np.maximum.accumulate(np.clip(np.append(cold, cold[-1]), 0.0, 1.0)),
        "replay_hits": np.maximum.accumulate(np.clip(np.append(replay, 1.0), 0.0, 1.0)),
        "window": np.append(window, window[-1]),
    }


def reuse_bins(occurrences: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> FloatArray:
    """The 17-bin reuse factor of rows that occurred so often (each ``weights`` times)."""
    times = np.asarray(occurrences)
    bins = np.searchsorted(np.asarray(REUSE_EDGES), times, side="left")
    share = np.bincount(bins, weights=None if weights is None else np.asarray(weights), minlength=REUSE_BINS)
    return np.asarray(share / max(share.sum(), 1e-300), dtype=np.float64)


def _poisson_reuse(counts: FloatArray, mean: FloatArray) -> FloatArray:
    """Expected reuse bins when a row's occurrences are Poisson of the given means."""
    below = poisson_below((0, *REUSE_EDGES), mean)
    bins = np.diff(np.vstack([below, np.ones_like(mean)]), axis=0) @ counts
    bins = np.maximum(bins, 0.0)
    return np.asarray(bins / max(bins.sum(), 1e-300), dtype=np.float64)


def poisson_below(counts: Sequence[int], mean: FloatArray) -> FloatArray:
    """P(Poisson(mean) ≤ k) for ascending counts k: (counts, means)."""
    few = np.array([k for k in counts if k <= _EXACT_POISSON])
    steps = np.arange(1, few[-1] + 1)[:, None]
    terms = np.exp(-mean) * np.vstack([np.ones_like(mean), np.cumprod(mean / steps, axis=0)])
    exact = np.minimum(np.cumsum(terms, axis=0)[few], 1.0)
    # P(Poisson(m) ≤ k) = P(Gamma(k+1) > m), and the cube root of a Gamma is near normal.
    shape = np.array([k + 1.0 for k in counts if k > _EXACT_POISSON])[:, None]
    z = ((mean / shape) ** (1 / 3) - (1 - 1 / (9 * shape))) * 3 * np.sqrt(shape)
    return np.vstack([exact, _normal_above(z)])


def _normal_above(z: FloatArray) -> FloatArray:
    """P(normal > z) to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26)."""
    x = np.abs(z) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-x * x)
    return np.asarray(np.where(z > 0, tail, 1 - tail))
