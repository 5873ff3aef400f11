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


FEW = 32
"""With no more intervals than this on one side, ranks are compared `AT_ONCE`: as many as caches hold."""
AT_ONCE = 32


def covered_by_rank(
    start: FloatArray, end: FloatArray, busy_start: FloatArray, busy_end: FloatArray
) -> FloatArray:
    """How much of each interval lies under the busy ones, which may overlap: a row is a rank."""
    few = min(start.shape[1], busy_start.shape[1])
    found = np.zeros_like(start)
    if not few:
        return found
    for rank in range(0, len(start), 1 if few > FEW else AT_ONCE):
        part = slice(rank, rank + AT_ONCE)
        if few > FEW:
            found[rank] = covered(start[rank], end[rank], *union(busy_start[rank], busy_end[rank]))
        else:
            found[part] = _compared(start[part], end[part], *_apart(busy_start[part], busy_end[part]))
    return found


def _compared(start: FloatArray, end: FloatArray, busy_start: FloatArray, busy_end: FloatArray) -> FloatArray:
    """The same for busy intervals that do not overlap, one after the other of the shorter list."""
    found = np.zeros_like(start)
    if start.shape[1] >= busy_start.shape[1]:
        for j in range(busy_start.shape[1]):
            shared = np.minimum(end, busy_end[:, j, None])
            shared -= np.maximum(start, busy_start[:, j, None])
            found += np.maximum(shared, 0.0, out=shared)
        return found
    for j in range(start.shape[1]):
        shared = np.minimum(busy_end, end[:, j, None])
        shared -= np.maximum(busy_start, start[:, j, None])
        found[:, j] = np.maximum(shared, 0.0, out=shared).sum(axis=1)
    return found


def _apart(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Intervals, in order along each row, that cover the same and do not overlap; some may be empty."""
    if (np.diff(start, axis=1) < 0).any():
        order = np.argsort(start, axis=1, kind="stable")
        start, end = (np.take_along_axis(a, order, axis=1) for a in (start, end))
    until = np.maximum.accumulate(end, axis=1)
    return np.maximum(start, np.concatenate((start[:, :1], until[:, :-1]), axis=1)), until
