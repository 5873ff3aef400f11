"""A pipeline's step as a schedule: blocks of operators that repeat, and messages between stages.

A block is local to its stage: it exchanges nothing with other stages, so how it moves the clocks of its rank
is the same wherever it stands. `Schedule.job` writes the blocks out one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stepsight.program.job import COMPUTE, HOST, Group, Job, Op, Period, RankProgram, Wait


@dataclass(frozen=True, slots=True)
class Block:
    """Operators in a row; stages and micro-batches that do the same share the object."""

    ops: tuple[Op, ...]


class Transfer(NamedTuple):
    """One end of a message to another stage; both ends have the same ``key``."""

    op: Op
    key: Hashable
    sends: bool
    stream: str


class Arrival(NamedTuple):
    """Compute waits for a received message; ``host``: the host does so too, and for the device."""

    op: Op
    key: Hashable
    host: bool = False


Event = Block | Transfer | Arrival


@dataclass(frozen=True, slots=True)
class Stage:
    """The events of one stage in order.

    ``starts``: at which events the blocks of its steady part begin, and last where they end; ``skipped``: how
    many more of them there are; ``group``: the micro-batches of one.
    """

    events: tuple[Event, ...]
    starts: tuple[int, ...] = ()
    skipped: int = 0
    group: int = 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """All stages; ``numbers``: the ranks that they show."""

    stages: tuple[Stage, ...]
    groups: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()

    @property
    def events(self) -> int:
        """Of all stages."""
        return sum(len(stage.events) for stage in self.stages)

    def job(self) -> Job:
        """One program for each stage."""
        programs = tuple(_program(stage, i) for i, stage in enumerate(self.stages))
        return Job(programs, tuple(range(len(programs))), dict(self.groups), numbers=self.numbers)


def _program(stage: Stage, index: int) -> RankProgram:
    ops: list[Op] = []
    arrived: dict[Hashable, int] = {}
    begins = []
    for i, event in enumerate(stage.events):
        if i in stage.starts:
            begins.append(len(ops))
        if isinstance(event, Block):
            ops.extend(event.ops)
        elif isinstance(event, Transfer):
            ops.append(event.op)
            if not event.sends:
                arrived[event.key] = len(ops) - 1
        else:
            at = arrived.pop(event.key)
            waits = [Wait(COMPUTE, at)]
            waits += [Wait(HOST, at), Wait(HOST, COMPUTE)] if event.host else []
            ops.append(replace(event.op, waits=tuple(waits)))
    period = Period(tuple(begins), stage.skipped, stage.group) if stage.starts else None
    return RankProgram(tuple(ops), f"stage {index}", period)
