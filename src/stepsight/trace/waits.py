"""Which kernel a stream or the host waited for.

Newer traces say it (``cuda_sync`` events name the stream and the recorded event). Older
ones only show that ``cudaStreamWaitEvent`` or a synchronize call happened; there the
kernels' own times tell: of all kernels launched before the call, the one that ended last
before the waiting work began is the one that held it up.

A stream's queue holds about a thousand launches. A host that far ahead of the GPU waits inside its next
launch call for a kernel to end: the GPU's time, which must not count as the host's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.program.job import COMM, COMPUTE
from stepsight.simulate.intervals import union
from stepsight.trace.events import Event
from stepsight.trace.launches import HIDDEN, Launch
from stepsight.trace.link import LinkedTrace, is_collective_kernel

C = area("traces")

StreamId = int | str


@dataclass(frozen=True, slots=True)
class StreamWait:
    """``waiter`` goes on when the last kernel of ``launch`` has ended."""

    waiter: StreamId
    launch: Launch


def stream_names(linked: LinkedTrace) -> dict[StreamId, str]:
    """Our names for the trace's streams: the busiest is compute, NCCL's are comm, comm2, …"""
    kernels: dict[StreamId, float] = defaultdict(float)
    nccl: dict[StreamId, float] = defaultdict(float)
    for launch in linked.launches:
        for event in launch.gpu:
            (nccl if is_collective_kernel(event) else kernels)[event.args.stream] += event.dur
    busiest = max(kernels, key=lambda s: kernels[s], default=None)
    names: dict[StreamId, str] = {}
    if busiest is not None:
        names[busiest] = COMPUTE
    for i, stream in enumerate(sorted((s for s in nccl if s != busiest), key=lambda s: -nccl[s])):
        names[stream] = COMM if i == 0 else f"{COMM}{i + 1}"
    for stream in kernels:
        names.setdefault(stream, f"stream {stream}")
    return names


class _Busy:
    """When any stream computed."""

    def __init__(self, kernels: list[Event]) -> None:
        starts, ends = np.array([e.ts for e in kernels]), np.array([e.end for e in kernels])
        self.starts, self.ends = union(starts, ends)
        self.before = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])

    def within(self, start: float, end: float) -> float:
        """Of a stretch of time, how much some stream computed."""
        return self._until(end) - self._until(start)

    def _until(self, moment: float) -> float:
        at = int(np.searchsorted(self.starts, moment))
        over = max(0.0, float(self.ends[at - 1]) - moment) if at else 0.0
        return float(self.before[at]) - over


class _Queue:
    """Launches in the order of their calls: those of a stream, or of a host thread."""

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._starts: list[float] = []

    def add(self, launch: Launch) -> None:
        self._launches.append(launch)
        self._starts.append(launch.call.ts)

    def before(self, time: float) -> Launch | None:
        """The last one called by then."""
        at = bisect_right(self._starts, time)
        return self._launches[at - 1] if at else None

    def after(self, time: float) -> Launch | None:
        """The first one called from then on."""
        at = bisect_left(self._starts, time)
        return self._launches[at] if at < len(self._launches) else None

    def ended(self, call: float, began: float) -> Launch | None:
        """The last one called before a call that had ended when the waiting work began."""
        at = bisect_right(self._starts, call)
        while at and self._launches[at - 1].gpu[-1].end > began + C.STREAM_SLACK_US:
            at -= 1
        return self._launches[at - 1] if at else None


class WaitResolver:
    """Answers, for one rank, what each wait and synchronize call waited for.

    ``stream_names`` are ours for the trace's streams.
    ``held_us`` is what launch calls waited for room in the queue, by the launch's index.
    """

    def __init__(self, linked: LinkedTrace) -> None:
        self.first_call_us = linked.launches[0].call.ts if linked.launches else float("inf")
        self._streams: dict[StreamId, _Queue] = {}
        self._threads: dict[int | str, _Queue] = defaultdict(_Queue)
        for launch in linked.launches:
            self._streams.setdefault(launch.gpu[-1].args.stream, _Queue()).add(launch)
            self._threads[launch.call.tid].add(launch)
        self.stated = {e.args.correlation: e for e in linked.trace.syncs}
        self.stream_names = stream_names(linked)
        self.hidden = linked.hidden_waits
        self.recorded = {e.args.correlation: e for e in linked.records}
        self.held_us = held_calls(linked)
        recorded = [*(e for x in linked.launches for e in x.gpu), *linked.orphans]
        self.busy = _Busy([e for e in recorded if not is_collective_kernel(e)])

    def stream_wait(self, call: Event, taken: set[int]) -> StreamWait | None:
        """What a stream-wait call waits for; ``taken`` holds the launches already named
        by the calls just before it, so that two waits in a row name two streams."""
        stated = self.stated.get(call.args.correlation)
        if stated is not None and stated.args.wait_on_stream != -1:
            return self._stated_wait(call, stated)
        waiting = self._threads[call.tid].after(call.ts)
        return self._held_by(waiting, call.ts, taken) if waiting is not None else None

    def held_by(self, launch: Launch) -> StreamWait | None:
        """What a launch on its own stream must have waited for, where no wait call shows it."""
        return self._held_by(launch, launch.call.ts, set())

    def _held_by(self, waiting: Launch, before: float, taken: set[int]) -> StreamWait | None:
        stream, began = waiting.gpu[0].args.stream, waiting.gpu[0].ts
        held = [q.ended(before, began) for other, q in self._streams.items() if other != stream]
        able = [x for x in held if x is not None and x.index not in taken]
        last = max(able, key=lambda x: x.gpu[-1].end, default=None)
        return StreamWait(stream, last) if last is not None else None

    def host_sync(self, call: Event) -> list[Launch]:
        """The launches whose end let a synchronize call return: one per stream for a device sync."""
        if call.name == HIDDEN:
            held = self.hidden.get((call.tid, call.ts))
            return [held] if held is not None else []
        latest = {stream: queue.before(call.ts) for stream, queue in self._streams.items()}
        candidates = [x for x in latest.values() if x is not None]
        if "Device" in call.name or "Ctx" in call.name:
            return candidates
        stated = self.stated.get(call.args.correlation)
        if stated is not None and stated.args.stream in latest and "Stream" in stated.args.cuda_sync_kind:
            named = latest[stated.args.stream]
            return [named] if named is not None else []
        ended = [x for x in candidates if x.gpu[-1].end <= call.end + C.STREAM_SLACK_US]
        last = max(ended, key=lambda x: x.gpu[-1].end, default=None)
        if last is None or last.gpu[-1].end < call.end - C.HOST_RETURNS_US:
            # Nothing ended as the call returned: by the device's clock it may have ended just after.
            drift = min(C.CLOCK_DRIFT_US, call.dur / C.SURENESS)
            last = min(
                (x for x in candidates if call.end < x.gpu[-1].end <= call.end + drift),
                key=lambda x: x.gpu[-1].end, default=last,
            )  # fmt: skip
        if last is not None and last.gpu[-1].end >= call.ts:
            return [last]
        # It returned at once: the work just launched on this thread had ended already.
        mine = self._threads[call.tid].before(call.ts)
        return [mine] if mine is not None and mine in ended else []

    def _stated_wait(self, call: Event, stated: Event) -> StreamWait | None:
        record = self.recorded.get(stated.args.wait_on_cuda_event_record_corr_id)
        queue = self._streams.get(stated.args.wait_on_stream, _Queue())
        held = queue.before(record.ts if record else call.ts)
        return StreamWait(stated.args.stream, held) if held is not None else None


def held_calls(linked: LinkedTrace) -> dict[int, float]:
    """The waiting part of launch calls that met a full queue, by the launch's index: what they took beyond
    their like."""
    launches = sorted(linked.launches, key=lambda x: x.call.ts)
    if not launches:
        return {}
    # Kernels from before the recording, which have no call, lie ahead of the first recorded launch's.
    earlier = [e.ts for e in linked.orphans if e.ts < launches[0].gpu[0].ts]
    begun = np.sort([x.gpu[0].ts for x in launches] + earlier)
    ahead = len(earlier) + np.arange(len(launches)) - np.searchsorted(begun, [x.call.ts for x in launches])
    full = ahead >= C.FULL_QUEUE
    if not full.any():
        return {}
    free: dict[str, list[float]] = defaultdict(list)
    every: dict[str, list[float]] = defaultdict(list)
    for launch, is_full in zip(launches, full, strict=True):
        every[launch.call.name].append(launch.call.dur)
        if not is_full:
            free[launch.call.name].append(launch.call.dur)
    # A call's median length: where the queue had room if that was ever seen, else over all.
    usual = {name: float(np.median(free.get(name) or durations)) for name, durations in every.items()}
    # Up to twice its usual length a call is merely slow.
    held = [x for x, f in zip(launches, full, strict=True) if f and x.call.dur > 2 * usual[x.call.name]]
    return {x.index: x.call.dur - usual[x.call.name] for x in held}
