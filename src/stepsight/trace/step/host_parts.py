"""T1–T5 of one operator from the calls inside its span, without host time that is not its own.

A stream's queue holds about a thousand launches. A host that far ahead of the GPU waits inside its next
launch call for a kernel to end: the GPU's time, which must not count as the host's. An allocation is the
allocator's answer to the state of the memory, not what the operator around it costs.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

import numpy as np

from stepsight.overheads.gather import NOTHING
from stepsight.program.job import HostTimes
from stepsight.trace.constants import FULL_QUEUE
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event


class Stalls:
    """Answers, for one rank, how much of a stretch of host time was a stall."""

    def __init__(self, linked: LinkedTrace) -> None:
        self._allocations = _Stretches([(c.ts, c.dur) for c in linked.allocation_calls])
        self._held = _Stretches(_held_calls(linked))

    def allocating_us(self, start: float, end: float) -> float:
        """Time inside calls that allocate or free device memory."""
        return self._allocations.within(start, end)

    def held_us(self, start: float, end: float) -> float:
        """Time that launch calls waited for room in the queue."""
        return self._held.within(start, end)


class _Stretches:
    """Stretches of host time in order, and how much of them lies before a moment."""

    def __init__(self, stretches: list[tuple[float, float]]) -> None:
        ordered = sorted(stretches)
        self.starts: list[float] = [s for s, _ in ordered]
        self.lengths: list[float] = [d for _, d in ordered]
        self.total: list[float] = [0.0, *accumulate(self.lengths)]

    def within(self, start: float, end: float) -> float:
        if not self.starts or end <= start:
            return 0.0
        return self._before(end) - self._before(start)

    def _before(self, moment: float) -> float:
        at = bisect_right(self.starts, moment) - 1
        if at < 0:
            return 0.0
        return self.total[at] + min(self.lengths[at], moment - self.starts[at])


def _held_calls(linked: LinkedTrace) -> list[tuple[float, float]]:
    """The waiting part of launch calls that met a full queue: what they took beyond their like."""
    launches = sorted(linked.launches, key=lambda x: x.call.ts)
    if not launches:
        return []
    # Kernels from before the recording, which have no call, lie ahead of the first recorded launch's.
    earlier = [e.ts for e in linked.orphans if e.ts < launches[0].gpu[0].ts]
    begun = np.sort([x.gpu[0].ts for x in launches] + earlier)
    calls = [x.call for x in launches]
    ahead = len(earlier) + np.arange(len(calls)) - np.searchsorted(begun, [c.ts for c in calls])
    full = ahead >= FULL_QUEUE
    if not full.any():
        return []
    usual = _usual_us(calls, full)
    # Up to twice its usual length a call is merely slow.
    held = [c for c, f in zip(calls, full, strict=True) if f and c.dur > 2 * usual[c.name]]
    return [(c.ts, c.dur - usual[c.name]) for c in held]


def _usual_us(calls: list[Event], full: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> dict[str, float]:
    """A call's median length: where the queue had room if that was ever seen, else over all."""
    free: dict[str, list[float]] = defaultdict(list)
    every: dict[str, list[float]] = defaultdict(list)
    for call, is_full in zip(calls, full, strict=True):
        every[call.name].append(call.dur)
        if not is_full:
            free[call.name].append(call.dur)
    return {name: float(np.median(free.get(name) or durations)) for name, durations in every.items()}


def host_times(
    calls: list[Event], start: float, end: float, t1: float, share: float, stalls: Stalls
) -> HostTimes:
    """The parts of a span; ``share`` of it is not already another thread's. A launch call's wait for
    room in the queue is the GPU's time, not its own."""
    if not calls:
        return HostTimes(t1, 0.0, 0.0, 0.0, share * max(0.0, end - start))
    gaps = [max(0.0, b.ts - a.end) for a, b in itertools.pairwise(calls)]
    t2 = max(0.0, calls[0].ts - start)
    t3 = max(0.0, end - calls[-1].end)
    t4 = sum(c.dur - stalls.held_us(c.ts, c.end) for c in calls) / len(calls)
    t5 = sum(gaps) / len(gaps) if gaps else 0.0
    return HostTimes(t1, share * t2, share * t3, share * max(0.0, t4), share * t5)


def allocating_times(
    calls: list[Event], start: float, end: float, t1: float, share: float, stalls: Stalls
) -> HostTimes:
    """How much of the same parts went into allocating device memory."""
    spent = stalls.allocating_us
    if not spent(start - t1, end):
        return NOTHING
    bounds = [start, *(x for c in calls for x in (c.ts, c.end)), end]
    before, *inside = [share * spent(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
    gap = spent(start - t1, start)
    if not calls:
        return HostTimes(gap, 0.0, 0.0, 0.0, before)
    *between, after = inside
    return HostTimes(gap, before, after, 0.0, sum(between) / len(between) if between else 0.0)


def spread(times: HostTimes, calls: int, kernels: int) -> HostTimes:
    """A graph launch: one call's cost over the many kernels it starts."""
    t5 = times.t5 * (calls - 1) / max(kernels - 1, 1)
    return HostTimes(times.t1, times.t2, times.t3, times.t4 * calls / kernels, t5)
