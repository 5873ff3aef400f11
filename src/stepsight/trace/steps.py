"""Where training steps begin, how long one takes on the GPU's clock, and the host operators inside.

ProfilerStep is a range on the host, which may run far ahead of the GPU. The step time that counts is the
period of the GPU timeline: the gap between successive runs of the kernels that run once a step.
A host unit is an operator at the grain at which T1–T5 are measured: a top-level one, unless it holds a wait,
a collective, several streams or very many launches; then the operators inside it are the units. Work launched
outside any operator is a unit of its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.trace.events import Event
from stepsight.trace.launches import NO_OP, Launch
from stepsight.trace.link import LinkedTrace, is_collective_kernel

C = area("traces")

_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)")
NO_MARKS = "no step marks"
"""How the step of a trace was found that shows none: it is all of it."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as the host saw it; ``how`` says by what it was found."""

    name: str
    start_us: float
    end_us: float
    how: str


def find_steps(linked: LinkedTrace) -> list[Step]:
    """By ProfilerStep, else by iteration markers, else by the repetition of kernels, else one step."""
    return _profiler_steps(linked) or _marker_steps(linked) or _repeated_steps(linked) or _whole(linked)


def gpu_periods(linked: LinkedTrace, steps: int) -> FloatArray:
    """Gaps between successive steps on the GPU timeline, in µs; empty for a single step.

    Entry i is the median, over kernels that run once a step, of the gap between run i and
    i+1; gaps that an allocation storm stretched do not count (NaN where all are).
    """
    if steps < 2:
        return np.zeros(0)
    starts: dict[tuple[str, str, int | str], list[float]] = defaultdict(list)
    for launch in linked.launches:
        for event in launch.gpu:
            # A collective starts when its rank arrives, not when its step does.
            if not is_collective_kernel(event):
                key = (event.name, str(event.grid()), event.args.stream)
                starts[key].append(event.ts)
    once = [sorted(ts) for ts in starts.values() if len(ts) == steps]
    if not once:
        return np.zeros(0)
    runs = np.array(once)
    gaps = np.diff(runs, axis=1)
    storm = allocation_us(linked, runs[:, :-1], runs[:, 1:]) > C.ALLOCATION_STORM * gaps
    periods = [
        float(np.median(g[~s])) if (~s).any() else np.nan for g, s in zip(gaps.T, storm.T, strict=True)
    ]
    return np.array(periods)


def allocation_us(linked: LinkedTrace, start: FloatArray, end: FloatArray) -> FloatArray:
    """Time of the calls that allocate or free device memory between two moments."""
    begun, total = linked.allocations
    return np.asarray(total[np.searchsorted(begun, end)] - total[np.searchsorted(begun, start)])


def _profiler_steps(linked: LinkedTrace) -> list[Step]:
    ranges = [*linked.trace.annotations, *linked.trace.host_ops]
    found = [Step(e.name, e.ts, e.end, "ProfilerStep") for e in ranges if _STEP.match(e.name)]
    if not found:
        return []
    # The step that was open when recording stopped leaves an empty range.
    usual = float(np.median([s.end_us - s.start_us for s in found]))
    kept = [s for s in found if s.end_us - s.start_us > C.STRAY_STEP * usual]
    return sorted(kept, key=lambda s: s.start_us)


def _marker_steps(linked: LinkedTrace) -> list[Step]:
    """Annotations of one name (but for a number) that recur evenly over the trace."""
    starts: dict[tuple[str, int | str], list[float]] = defaultdict(list)
    for event in linked.trace.annotations:
        starts[_DIGITS.sub("#", event.name), event.tid].append(event.ts)
    even = [ts for ts in starts.values() if _recurs_evenly(ts, linked)]
    if not even:
        return []
    steps = Counter(len(ts) for ts in even).most_common(1)[0][0]
    first = min((ts for ts in even if len(ts) == steps), key=lambda ts: ts[0])
    return _between(first, linked, "iteration marker")


def _repeated_steps(linked: LinkedTrace) -> list[Step]:
    """The commonest count of equal kernels is the number of steps; the first of them marks each."""
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for launch in linked.launches:
        for event in launch.gpu:
            seen[event.name, str(event.grid())].append(launch.call.ts)
    counts = Counter(len(ts) for ts in seen.values() if len(ts) > 1)
    launched = sum(len(ts) for ts in seen.values())
    for steps, votes in sorted(counts.items(), key=lambda c: (-c[1], c[0])):
        repeating = sum(len(ts) for ts in seen.values() if len(ts) % steps == 0)
        even = [ts for ts in seen.values() if len(ts) == steps and _recurs_evenly(ts, linked)]
        if votes >= C.FEWEST_VOTES and even and repeating > C.STEPS_COVER * launched:
            return _between(min(even, key=lambda ts: ts[0]), linked, "repetition of kernels")
    return []


def _recurs_evenly(starts: list[float], linked: LinkedTrace) -> bool:
    if len(starts) < C.FEWEST_REPEATS:
        return False
    gaps = np.diff(starts)
    first, last = _span(linked)
    covered = starts[-1] + float(gaps.mean()) - starts[0]
    apart = gaps.min() > C.EVEN_GAPS * np.median(gaps)
    return bool(apart and covered > C.STEPS_COVER * (last - first))


def _between(starts: list[float], linked: LinkedTrace, how: str) -> list[Step]:
    bounds = [*starts, max(_span(linked)[1], starts[-1] + 1.0)]
    return [Step(f"step {i}", a, b, how) for i, (a, b) in enumerate(pairwise(bounds))]


def _whole(linked: LinkedTrace) -> list[Step]:
    events = [*linked.ops, *(x.call for x in linked.launches), *linked.syncs]
    if not events:
        return []
    start, end = min(e.ts for e in events), max(e.end for e in events)
    return [Step("whole trace", start, end, NO_MARKS)]


def _span(linked: LinkedTrace) -> tuple[float, float]:
    """First launch and last launch on the host."""
    calls = [x.call for x in linked.launches]
    return (calls[0].ts, calls[-1].end) if calls else (0.0, float("inf"))


LAUNCH, SYNC, WAIT = "launch", "sync", "wait"


@dataclass(frozen=True, slots=True)
class Item:
    """A runtime call that matters to the walk: a launch, a host sync or a stream wait."""

    kind: str
    call: Event
    launch: Launch | None = None


@dataclass(slots=True)
class HostUnit:
    """One host operator: its span on its thread and the calls inside, in order.

    ``op`` indexes `LinkedTrace.ops`; ``inner_ops`` counts the recorded operators in the span.
    """

    name: str
    start: float
    end: float
    thread: int | str
    op: int = NO_OP
    items: list[Item] = field(default_factory=list)
    inner_ops: int = 0

    @property
    def launches(self) -> list[Launch]:
        return [i.launch for i in self.items if i.launch is not None]


def host_units(linked: LinkedTrace) -> list[HostUnit]:
    """All units of the threads that launch work or wait for it, in order of their start."""
    grouping = _Grouping(linked)
    threads = {i.call.tid for i in grouping.items}
    units: list[HostUnit] = []
    for op in linked.children(NO_OP):
        if linked.ops[op].tid in threads:
            units += grouping.units(op)
    units += [_alone(item, item.call.name) for item in grouping.own[NO_OP] if item.call.tid in threads]
    units.sort(key=lambda u: (u.start, u.end))
    return units


class _Grouping:
    """Which calls lie in which operator, and which operators must be taken apart."""

    def __init__(self, linked: LinkedTrace) -> None:
        self.linked = linked
        launching = {x.call.tid for x in linked.launches}
        self.items = [Item(LAUNCH, x.call, x) for x in linked.launches]
        self.items += [Item(SYNC, c) for c in linked.syncs if c.tid in launching]
        self.items += [Item(WAIT, c) for c in linked.stream_waits if c.tid in launching]
        self.items.sort(key=lambda i: i.call.ts)
        self.own: dict[int, list[Item]] = defaultdict(list)
        count = len(linked.ops)
        self.launches, self.inner = [0] * count, [1] * count
        self.streams, self.held = [0] * count, [0] * count
        """For each operator, its streams as bits of a number, and how many calls lie in it."""
        self._bits: dict[int | str, int] = {}
        self.split = [False] * count
        for item in self.items:
            op = item.launch.op if item.launch else linked.enclosing(item.call)
            self.own[op].append(item)
            if op != NO_OP:
                self._note(op, item)
        # Operators are in time order, so every parent comes before what it holds.
        for op in range(count - 1, -1, -1):
            parent = linked.parent[op]
            if parent != NO_OP:
                self.launches[parent] += self.launches[op]
                self.inner[parent] += self.inner[op]
                self.streams[parent] |= self.streams[op]
                self.held[parent] += self.held[op]
                self.split[parent] |= self.split[op]

    def _note(self, op: int, item: Item) -> None:
        self.held[op] += 1
        if item.launch is None:
            self.split[op] = True
            return
        self.launches[op] += 1
        self.streams[op] |= self._bits.setdefault(item.launch.gpu[0].args.stream, 1 << len(self._bits))
        if is_collective_kernel(item.launch.gpu[0]):
            self.split[op] = True

    def units(self, op: int) -> list[HostUnit]:
        event = self.linked.ops[op]
        children = self.linked.children(op)
        several = self.streams[op].bit_count() > 1
        if children and (self.split[op] or several or self.launches[op] > C.MOST_LAUNCHES):
            inside = [u for child in children for u in self.units(child)]
            inside += [_alone(item, event.name, op) for item in self.own[op]]
            return sorted(inside, key=lambda u: u.start)
        items = sorted(self._within(op), key=lambda i: i.call.ts) if self.held[op] else []
        return [HostUnit(event.name, event.ts, event.end, event.tid, op, items, self.inner[op])]

    def _within(self, op: int) -> list[Item]:
        items = list(self.own.get(op, ()))
        if len(items) < self.held[op]:
            for child in self.linked.children(op):
                if self.held[child]:
                    items += self._within(child)
        return items


def _alone(item: Item, name: str, op: int = NO_OP) -> HostUnit:
    return HostUnit(name, item.call.ts, item.call.end, item.call.tid, op, [item])
