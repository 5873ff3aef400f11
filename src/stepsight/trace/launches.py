"""A launch: the runtime call and the GPU work it started; the GPU's clock; host waits that no call shows.

A profiler converts the stamps of two clocks, not always well. No kernel begins before its launch call: a
GPU's clock that says so runs early. Some versions do not record ``cudaEventSynchronize``: the wait shows as a
long gap on the host that ends just after a long kernel did, too closely for chance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.trace.events import Category, Event

C = area("traces")

NO_OP = -1
"""Stands for "in no operator" where an operator's index is expected."""


@dataclass(slots=True)
class Launch:
    """One runtime call that put work on a stream; a graph launch puts many kernels there.

    ``index`` is its place in `LinkedTrace.launches`. ``free_us``: for each kernel, when its stream had done
    everything before it.
    """

    call: Event
    gpu: list[Event]
    op: int = NO_OP
    """Index of the innermost operator around the call in `LinkedTrace.ops`."""
    index: int = -1
    free_us: tuple[float, ...] = ()


def clock_shift_us(launches: Sequence[Launch]) -> float:
    """How far the GPU's clock runs early, by a rank's launches: what to add to the stamps of GPU events.

    A launch that was joined with a kernel of another moment must not move the whole trace: the earliest few
    are left out.
    """
    if not launches:
        return 0.0
    leads = np.array([x.call.ts - x.gpu[0].ts for x in launches])
    bad = C.CLOCK_QUANTILE
    lead = float(np.quantile(leads, 1.0 - bad, method="lower")) if len(leads) * bad >= 1 else _agreed(leads)
    if lead <= 0.0:
        return 0.0
    return float(leads[leads <= lead + C.CLOCK_DRIFT_US].max()) + C.SHORTEST_LAUNCH_US


def _agreed(leads: FloatArray) -> float:
    """The largest lead that a second launch confirms within the clocks' drift; of one launch, its own."""
    ordered = np.sort(leads)[::-1]
    if len(ordered) == 1:
        return float(ordered[0])
    close = np.flatnonzero(ordered[:-1] - ordered[1:] <= C.CLOCK_DRIFT_US)
    return float(ordered[close[0]]) if len(close) else float(np.median(ordered))


HIDDEN = "hidden wait"


def hidden_waits(
    launches: list[Launch], orphans: list[Event], runtime: list[Event], ops: list[Event]
) -> list[tuple[Event, Launch | None]]:
    """Made-up synchronize calls, each with the launch whose end let the host go on (None: unrecorded)."""
    threads: dict[int | str, list[Event]] = {x.call.tid: [] for x in launches}
    for events in (runtime, ops):
        for event in events:
            if event.tid in threads:
                threads[event.tid].append(event)
    # A kernel from before the recording has no call; it stands as its own.
    everything = [*launches, *(Launch(kernel, [kernel]) for kernel in orphans)]
    by_end = sorted(everything, key=lambda x: x.gpu[-1].end)
    ends = [x.gpu[-1].end for x in by_end]
    timed = {e.ts for e in runtime if e.name.startswith(("cudaEventElapsedTime", "hipEventElapsedTime"))}
    found: list[tuple[Event, Launch | None]] = []
    queues = _Queues(launches)
    spans = {thread: _spans(events) for thread, events in threads.items()}
    everyone = np.sort(np.concatenate([starts for starts, _ in spans.values()])) if spans else np.zeros(0)
    for thread, (starts, until) in spans.items():
        for start, end in _gaps(starts, until, everyone):
            held = _held(by_end, ends, start, end)
            if held is not None and not queues.drained(held, start):
                held = None
            # Reading an event's time needs the event to be done: whoever reads it has waited for it.
            if held is not None or end in timed:
                done = held.gpu[-1].end if held else end - 1.0
                found.append((Event("X", Category.OTHER, HIDDEN, 0, thread, start, done - start + 1.0), held))
    return found


def _spans(events: list[Event]) -> tuple[FloatArray, FloatArray]:
    """Starts and ends of a thread's calls and operators, by start."""
    starts = np.array([e.ts for e in events])
    ends = starts + np.array([e.dur for e in events])
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]


def _gaps(starts: FloatArray, ends: FloatArray, everyone: FloatArray) -> list[tuple[float, float]]:
    """Stretches in which neither this thread nor any other launching one did anything.

    ``everyone`` is when all the launching threads' calls and operators began, in order. A long one may itself
    hold a wait: it counts as busy only where it begins.
    """
    short = ends - starts < C.HIDDEN_GAP_US
    busy_until = np.maximum.accumulate(np.where(short, ends, starts))[:-1]
    begun = starts[1:]
    long = np.flatnonzero(begun - busy_until > C.HIDDEN_GAP_US)
    before, after = busy_until[long], begun[long]
    first = np.searchsorted(everyone, before + 1, side="right")
    alone = first == np.searchsorted(everyone, after - 1, side="right")
    return list(zip(before[alone].tolist(), after[alone].tolist(), strict=True))


class _Queues:
    """When each stream is done with all that was launched on it up to a moment."""

    def __init__(self, launches: list[Launch]) -> None:
        self._calls: dict[int | str, list[float]] = defaultdict(list)
        self._done: dict[int | str, list[float]] = defaultdict(list)
        for launch in sorted(launches, key=lambda x: x.call.ts):
            last = launch.gpu[-1]
            done = self._done[last.args.stream]
            done.append(max(last.end, done[-1]) if done else last.end)
            self._calls[last.args.stream].append(launch.call.ts)

    def drained(self, held: Launch, start: float) -> bool:
        """Whether the stream had next to nothing left after the awaited kernel: a host that waits has not
        run far ahead."""
        stream = held.gpu[-1].args.stream
        at = bisect_left(self._calls[stream], start)
        queued = self._done[stream][at - 1] if at else 0.0
        return queued <= held.gpu[-1].end + C.LEFT_QUEUED_US


def _held(by_end: list[Launch], ends: list[float], start: float, end: float) -> Launch | None:
    at = bisect_right(ends, end + 1.0) - 1
    while at >= 0 and end - ends[at] <= C.HOST_RETURNS_US:
        launch = by_end[at]
        late = max(end - ends[at], 1.0)
        if launch.call.ts < start < ends[at] and launch.gpu[-1].dur >= C.SURENESS * late:
            return launch
        at -= 1
    return None
