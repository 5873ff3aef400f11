"""Host time that was not the operator's own: launch calls held by a full queue, and allocations.

A stream's queue holds about a thousand launches. A host that far ahead of the GPU waits
inside its next launch call for a kernel to end: the GPU's time, which must not come back
as the host's. An allocation is the allocator's answer to the state of the memory, not
what the operator around it costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

import numpy as np

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
