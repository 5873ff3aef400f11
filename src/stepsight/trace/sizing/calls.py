"""Library calls and the kernels each of them launched together.

An operator's recorded inputs bound all of its kernels together: the longest kernel does the call's main
work, the others prepare or finish it and are sized by their own grids. A call of no library (a compiled
region, a custom function) that launches several kernels has no main one: any of them may work on any part
of what it lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stepsight.overheads.tables import op_class
from stepsight.trace.linking.launches import NO_OP, Launch
from stepsight.trace.linking.link import LinkedTrace, is_collective_kernel
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.tensors import Tensor, tensors_of

_FOLLOWING = 24
"""Operators behind a call that are looked at for the size of its result."""


@dataclass(frozen=True)
class Call:
    """One operator with recorded sizes and its kernels in launch order."""

    op: Event
    kernels: tuple[Event, ...]
    ops: Sequence[Event] = ()
    place: int = 0
    """All operators of the trace, and where among them its own stands."""

    @cached_property
    def following(self) -> tuple[Event, ...]:
        """The operators that begin next on its thread: they read what it made."""
        later = self.ops[self.place + 1 : self.place + 1 + _FOLLOWING]
        return tuple(e for e in later if e.tid == self.op.tid and e.ts >= self.op.end)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The operator's recorded inputs."""
        return tensors_of(self.op)

    @cached_property
    def main(self) -> str:
        """The name of the kernel that took longest, all of that name together."""
        total: dict[str, float] = defaultdict(float)
        for event in self.kernels:
            total[event.name] += event.dur
        return max(total, key=lambda name: total[name])

    def alike(self, event: Event) -> list[Event]:
        """The call's kernels of one name: PyTorch splits what is too large for one launch."""
        return self._by_name[event.name]

    @cached_property
    def _by_name(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.kernels:
            found[event.name].append(event)
        return found

    @cached_property
    def is_region(self) -> bool:
        """Whether it is code of several kernels that no library rule describes."""
        return len(self._by_name) > 1 and not self.op.name.startswith("aten::")


class Calls:
    """The kernels of a trace by the operator that launched them: one `Call` each, made when asked for."""

    def __init__(self, linked: LinkedTrace) -> None:
        self._ops = linked.ops
        self._members: dict[int, list[Launch]] = defaultdict(list)
        self._place: dict[int, int] = {}
        """By ``id`` of a launch, where its operator stands."""
        self._made: dict[int, Call | None] = {}
        known: dict[int, int] = {}
        for launch in linked.launches:
            place = known.get(launch.op, NO_OP)
            if place == NO_OP:
                place = known[launch.op] = launching_op(linked, launch)
            if place != NO_OP:
                self._members[place].append(launch)
                self._place[id(launch)] = place

    def of(self, launch: Launch) -> Call | None:
        """The call that a launch belongs to; None of copies and of what no operator launched."""
        place = self._place.get(id(launch), NO_OP)
        if place == NO_OP:
            return None
        if place not in self._made:
            events = tuple(e for x in self._members[place] for e in x.gpu if _computes(e))
            self._made[place] = Call(self._ops[place], events, self._ops, place) if events else None
        return self._made[place]


def launching_op(linked: LinkedTrace, launch: Launch) -> int:
    """Where the innermost operator with sizes that computes stands; views and allocations launch nothing."""
    innermost, op = NO_OP, launch.op
    while op != NO_OP:
        event = linked.ops[op]
        if op_class(event.name) != "view" or event.name == "aten::to":
            if event.shapes():
                return op
            innermost = op if innermost == NO_OP else innermost
        op = linked.parent[op]
    return innermost if innermost != NO_OP else launch.op


def _computes(event: Event) -> bool:
    return not is_collective_kernel(event) and not event.name.startswith(("Memcpy", "Memset", "Copy"))
