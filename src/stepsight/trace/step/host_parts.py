"""T1–T5 of one operator from the calls inside its span."""

from __future__ import annotations

import itertools

from stepsight.overheads.gather import NOTHING
from stepsight.program.job import HostTimes
from stepsight.trace.reading.events import Event
from stepsight.trace.step.stalls import Stalls


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
