"""Sums over intervals of time: what is busy, and what lies under it."""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray


def union(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Disjoint intervals, in order, that cover what the given ones cover."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], end[last]


def covered(start: FloatArray, end: FloatArray, busy_start: FloatArray, busy_end: FloatArray) -> FloatArray:
    """How much of each interval lies under the (disjoint, ordered) busy ones."""
    before = np.concatenate(([0.0], np.cumsum(busy_end - busy_start)))

    def busy_until(t: FloatArray) -> FloatArray:
        i = np.searchsorted(busy_start, t, side="right") - 1
        inside = np.minimum(t, busy_end[np.maximum(i, 0)]) - busy_start[np.maximum(i, 0)]
        return np.asarray(np.where(i >= 0, before[np.maximum(i, 0)] + inside, 0.0))

    if not len(busy_start):
        return np.zeros_like(start)
    return np.asarray(busy_until(end) - busy_until(start))


def covered_by_rank(
    start: FloatArray, end: FloatArray, busy_start: FloatArray, busy_end: FloatArray
) -> FloatArray:
    """How much of each interval lies under the busy ones, which may overlap: a row is a rank."""
    if not start.size or not busy_start.size:
        return np.zeros_like(start)
    # Every rank gets a stretch of the time axis to itself, so that one pass serves all.
    first = min(start.min(), busy_start.min())
    whole = max(end.max(), busy_end.max()) - first + 1.0
    shift = whole * np.arange(len(start))[:, None] - first
    busy = union((busy_start + shift).ravel(), (busy_end + shift).ravel())
    return covered((start + shift).ravel(), (end + shift).ravel(), *busy).reshape(start.shape)
