"""Bags of different length: what the longest of them is, and how to draw them.

Lengths are taken as log-normal with a mean and a spread (standard deviation of ln(length)): one parameter
that holds both bags that are nearly identical and the long tails of click histories.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from stepsight.estimate import IntArray

_POINTS = 64
"""Of the integral over the quantiles of the longest bag: 1 % exact up to a spread of 1.5."""


def spread_of(lengths: npt.ArrayLike) -> float:
    """The spread of log-normal lengths with the mean and variance of these (empty bags count)."""
    values = np.asarray(lengths, dtype=np.float64)
    mean = float(values.mean()) if values.size else 0.0
    return float(np.sqrt(np.log1p(values.var() / mean**2))) if mean > 0 else 0.0


def traced_spread(lookups: float, batch: int, tables: int) -> float:
    """The spread of bags of which a trace tells the total alone.

    Whole lookups a sample: bags of fixed length. Otherwise lengths vary at least as counts do (Poisson).
    """
    if lookups <= 0 or lookups % batch == 0:
        return 0.0
    return float(np.sqrt(np.log1p(batch * tables / lookups)))


@lru_cache(maxsize=4096)
def longest_over_mean(spread: float, bags: int) -> float:
    """The expected longest of this many bags, as a multiple of the mean length."""
    if spread <= 0 or bags <= 1:
        return 1.0
    at = ((np.arange(_POINTS) + 0.5) / _POINTS) ** (1.0 / bags)
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf(min(float(u), 1 - 1e-12)) for u in at])
    return max(float(np.mean(np.exp(spread * quantiles - spread**2 / 2))), 1.0)


def draw_lengths(mean: float, spread: float, bags: int, rng: np.random.Generator) -> IntArray:
    """Lengths of this many bags with the exact total: identical but for a remainder, or log-normal."""
    total = round(mean * bags)
    wanted = np.full(bags, total / max(bags, 1))
    if spread > 0:
        drawn = np.exp(spread * rng.standard_normal(bags))
        wanted = drawn * (total / drawn.sum())
    lengths = np.floor(wanted).astype(np.int64)
    missing = total - int(lengths.sum())
    lengths[rng.permutation(bags)[:missing]] += 1
    return np.asarray(lengths)
