"""Host waits that a trace does not show as calls.

Some versions do not record ``cudaEventSynchronize``. The wait then shows as a long gap on
the host that ends just after a long kernel did, too closely for chance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from stepsight.trace.linking.launches import Launch
from stepsight.trace.reading.events import Category, Event
from stepsight.trace.rules import RULES

HIDDEN = "hidden wait"
SHORTEST_GAP_US = RULES.value("hidden_gap")
_LEFT_QUEUED_US = RULES.value("left_queued")


def hidden_waits(
    launches: list[Launch], orphans: list[Event], runtime: list[Event], ops: list[Event]
) -> list[tuple[Event, Launch | None]]:
    """Made-up synchronize calls, each with the launch whose end let the host go on (None: unrecorded)."""
    threads: dict[int | str, list[tuple[float, float]]] = defaultdict(list)
    launching = {x.call.tid for x in launches}
    for event in [*runtime, *ops]:
        if event.tid in launching:
            threads[event.tid].append((event.ts, event.end))
    # A kernel from before the recording has no call; it stands as its own.
    everything = [*launches, *(Launch(kernel, [kernel]) for kernel in orphans)]
    by_end = sorted(everything, key=lambda x: x.gpu[-1].end)
    ends = [x.gpu[-1].end for x in by_end]
    timed = {e.ts for e in runtime if e.name.startswith(("cudaEventElapsedTime", "hipEventElapsedTime"))}
    found: list[tuple[Event, Launch | None]] = []
    queues = _Queues(launches)
    everyone = sorted(span for spans in threads.values() for span in spans)
    for thread, spans in threads.items():
        for start, end in _gaps(spans, everyone):
            held = _held(by_end, ends, start, end)
            if held is not None and not queues.drained(held, start):
                held = None
            # Reading an event's time needs the event to be done: whoever reads it has waited for it.
            if held is not None or end in timed:
                done = held.gpu[-1].end if held else end - 1.0
                found.append((Event("X", Category.OTHER, HIDDEN, 0, thread, start, done - start + 1.0), held))
    return found


def _gaps(spans: list[tuple[float, float]], everyone: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches in which neither this thread nor any other launching one did anything."""
    starts = [s for s, _ in everyone]
    gaps = []
    busy_until = float("-inf")
    for start, end in sorted(spans):
        if start - busy_until > SHORTEST_GAP_US and busy_until > float("-inf"):
            others = bisect_right(starts, busy_until + 1), bisect_right(starts, start - 1)
            if others[0] == others[1]:
                gaps.append((busy_until, start))
        busy_until = max(busy_until, end if end - start < SHORTEST_GAP_US else start)
    return gaps


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
        """Whether the stream had next to nothing left behind the awaited kernel: a host that waits has not
        run far ahead."""
        stream = held.gpu[-1].args.stream
        at = bisect_left(self._calls[stream], start)
        queued = self._done[stream][at - 1] if at else 0.0
        return queued <= held.gpu[-1].end + _LEFT_QUEUED_US


def _held(by_end: list[Launch], ends: list[float], start: float, end: float) -> Launch | None:
    at = bisect_right(ends, end + 1.0) - 1
    while at >= 0 and end - ends[at] <= RULES.value("host_returns"):
        launch = by_end[at]
        late = max(end - ends[at], 1.0)
        if launch.call.ts < start < ends[at] and launch.gpu[-1].dur >= RULES.value("sureness") * late:
            return launch
        at -= 1
    return None
