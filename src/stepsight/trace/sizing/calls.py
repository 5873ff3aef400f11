"""Library calls and the kernels each of them launched together.

An operator's recorded inputs bound all of its kernels together: the longest kernel does the call's main
work, the others prepare or finish it and are sized by their own grids. A call of no library (a compiled
region, a custom function) that launches several kernels has no main one: any of them may work on any part
of what it lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stepsight.overheads.operators import op_class
from stepsight.trace.linking.launches import Launch
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


@dataclass(frozen=True, slots=True)
class Calls:
    """Every call of a trace by ``id`` of the launches that belong to it."""

    by_launch: dict[int, Call] = field(default_factory=dict)

    def of(self, launch: Launch) -> Call | None:
        return self.by_launch.get(id(launch))


def calls_of(linked: LinkedTrace) -> Calls:
    """Group the kernels of a trace by the operator that launched them."""
    members: dict[int, list[Launch]] = defaultdict(list)
    ops: dict[int, Event] = {}
    for launch in linked.launches:
        op = launching_op(linked, launch)
        if op is not None:
            members[id(op)].append(launch)
            ops[id(op)] = op
    found: dict[int, Call] = {}
    place = {id(op): i for i, op in enumerate(linked.ops)}
    for key, launches in members.items():
        events = tuple(e for x in launches for e in x.gpu if _computes(e))
        if events:
            call = Call(ops[key], events, linked.ops, place[key])
            found.update(dict.fromkeys(map(id, launches), call))
    return Calls(found)


def launching_op(linked: LinkedTrace, launch: Launch) -> Event | None:
    """The innermost operator with sizes that computes; views and allocations launch nothing."""
    chain = list(linked.chain(launch.op))
    computing = [e for e in chain if op_class(e.name) != "view" or e.name == "aten::to"]
    for event in computing:
        if event.shapes():
            return event
    return computing[0] if computing else (chain[0] if chain else None)


def _computes(event: Event) -> bool:
    return not is_collective_kernel(event) and not event.name.startswith(("Memcpy", "Memset", "Copy"))
