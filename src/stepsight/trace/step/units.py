"""Host units: the operators of a rank at the grain at which T1–T5 are measured.

A unit is a top-level operator, unless it holds a wait, a collective, several streams or
very many launches: then the operators inside it are the units. Work launched outside
any operator is a unit of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from stepsight.trace.constants import MOST_LAUNCHES
from stepsight.trace.linking.launches import NO_OP, Launch
from stepsight.trace.linking.link import LinkedTrace, is_collective_kernel
from stepsight.trace.reading.events import Event

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
        if children and (self.split[op] or several or self.launches[op] > MOST_LAUNCHES):
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
