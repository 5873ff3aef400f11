"""Rank programs lowered to tapes: what the engine walks.

A tape is the structure of a program with every name resolved: which host marks lie
between which joins, which launches go to which stream. Between two joins nothing but
running sums and running maxima happens, so such a stretch is one vectorised step for all
ranks and all configurations, however many kernels it holds. Programs that differ only in
sizes share a tape; the ranks on one tape form a `Lane`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import IntArray
from stepsight.program.job import HOST, Collective, Job, Kernel, Op, Period, RankProgram

HOST_CLOCK = -1
"""Stands for the host where a stream's number is expected."""
LONGEST_STRETCH = 4096
"""Marks in one stretch at most, which bounds the engine's working memory."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Host marks ``lo`` to ``hi`` without any join; ``launches`` by stream, in order."""

    lo: int
    hi: int
    launches: tuple[tuple[int, IntArray], ...]


@dataclass(frozen=True, slots=True)
class Join:
    """``waiter`` waits for a launch (``on_launch`` ≥ 0) or for all of ``on_stream`` so far."""

    waiter: int
    on_launch: int
    on_stream: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks of a group meet in the ``ordinal``-th collective that this rank calls on it."""

    launch: int
    stream: int
    group: str
    ordinal: int
    after: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """Here a block of a period begins, or (``skipped`` ≥ 0) the last one ends and this many more follow.

    ``live`` are the launches before it that something after it waits for.
    """

    live: tuple[int, ...]
    skipped: int = -1


Instruction = Stretch | Join | Meeting | Boundary


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """Instructions, and for every launch its stream, host mark and operator.

    ``launch_times`` and ``op_times`` say for how many of the step's launches and operators each stands:
    more than one in the last block of a period.
    """

    instructions: tuple[Instruction, ...]
    streams: tuple[str, ...]
    launch_stream: IntArray
    launch_mark: IntArray
    launch_op: IntArray
    op_start_mark: IntArray
    op_end_mark: IntArray
    awaited: frozenset[int]
    marks: int
    launch_times: IntArray
    op_times: IntArray

    @property
    def launches(self) -> int:
        return len(self.launch_stream)


@dataclass(frozen=True, slots=True)
class Lane:
    """The ranks that walk one tape, and which of the job's programs each runs."""

    tape: LoweredProgram
    ranks: IntArray
    program_of_rank: IntArray


def lanes(job: Job, *, synchronous: bool) -> tuple[Lane, ...]:
    """The job's ranks, gathered by the structure of their programs."""
    kinds: dict[Any, int] = {}
    kind_of = {id(op): kinds.setdefault(_structure(op), len(kinds)) for op in job.distinct_ops()}
    by_structure: dict[Any, list[int]] = {}
    for index, program in enumerate(job.programs):
        structure = tuple([kind_of[id(op)] for op in program.ops]), program.period
        by_structure.setdefault(structure, []).append(index)
    programs = np.array(job.program_of_rank)
    result = []
    for members in by_structure.values():
        ranks = np.flatnonzero(np.isin(programs, members))
        if len(ranks):
            result.append(Lane(_lower(job.programs[members[0]], synchronous), ranks, programs[ranks]))
    return tuple(sorted(result, key=lambda lane: int(lane.ranks[0])))


def launches_of(op: Op) -> tuple[Kernel | Collective, ...]:
    """What an operator launches, in order: its kernels, then its collective."""
    return (*op.kernels, op.collective) if op.collective else op.kernels


def _structure(op: Op) -> Any:
    """What the walk sees of an operator, but for its times."""
    c = op.collective
    streams = tuple(k.stream for k in op.kernels)
    return streams, op.waits, op.blocks_host, (c.kind, c.group, c.stream, c.after) if c else None


def _lower(program: RankProgram, synchronous: bool) -> LoweredProgram:
    carriers = {op.collective.stream for op in program.ops if op.collective}
    lowering = _Lowering(synchronous, carriers)
    period = program.period
    skipped = dict.fromkeys(period.starts, -1) | {period.starts[-1]: period.skipped} if period else {}
    for index, op in enumerate(program.ops):
        if index in skipped:
            lowering.boundary(skipped[index])
        lowering.add(index, op)
    return lowering.tape(period)


class _Lowering:
    """Walks a program once, closing a stretch at every join."""

    def __init__(self, synchronous: bool, carriers: set[str]) -> None:
        self.synchronous, self.carriers = synchronous, carriers
        self.instructions: list[Instruction] = []
        self.boundaries: dict[int, int] = {}
        self.streams: dict[str, int] = {}
        self.launch_stream: list[int] = []
        self.launch_mark: list[int] = []
        self.launch_op: list[int] = []
        self.op_start: list[int] = []
        self.op_end: list[int] = []
        self.last_launch: dict[int, int] = {}
        self.awaited: set[int] = set()
        self.ordinals: dict[str, int] = {}
        self.marks = 0
        self.open_mark = 0
        self.open_launches: list[int] = []

    def add(self, index: int, op: Op) -> None:
        self.op_start.append(self._mark())
        for wait in op.waits:
            self._wait(wait.waiter, wait.on, index)
        for item in launches_of(op):
            launch = self._launch(index, item)
            if isinstance(item, Collective):
                self._meet(launch, item)
            else:
                self.open_launches.append(launch)
        if op.blocks_host and index in self.last_launch and not self.synchronous:
            self._wait(HOST, index, index + 1)
        self.op_end.append(self._mark())
        if self.marks - self.open_mark >= LONGEST_STRETCH:
            self._close()

    def boundary(self, skipped: int) -> None:
        """A block of a period begins, or the last one ends."""
        self._close()
        self.boundaries[len(self.instructions)] = len(self.launch_stream)
        self.instructions.append(Boundary((), skipped))

    def tape(self, period: Period | None = None) -> LoweredProgram:
        self._close()
        self._find_live()
        op_times = np.ones(len(self.op_start), dtype=np.int64)
        if period is not None:
            op_times[period.starts[-2] : period.starts[-1]] += period.skipped
        return LoweredProgram(
            tuple(self.instructions), tuple(self.streams),
            np.array(self.launch_stream, dtype=np.int64), np.array(self.launch_mark, dtype=np.int64),
            np.array(self.launch_op, dtype=np.int64), np.array(self.op_start, dtype=np.int64),
            np.array(self.op_end, dtype=np.int64), frozenset(self.awaited), self.marks,
            op_times[np.array(self.launch_op, dtype=np.int64)], op_times,
        )  # fmt: skip

    def _find_live(self) -> None:
        """Of every boundary, the launches before it that a later join waits for."""
        for place, launched in self.boundaries.items():
            here = self.instructions[place]
            joins = (i.on_launch for i in self.instructions[place:] if isinstance(i, Join))
            live = tuple(sorted({launch for launch in joins if 0 <= launch < launched}))
            if isinstance(here, Boundary):
                self.instructions[place] = Boundary(live, here.skipped)

    def _mark(self) -> int:
        self.marks += 1
        return self.marks - 1

    def _stream(self, name: str) -> int:
        return self.streams.setdefault(name, len(self.streams))

    def _launch(self, op: int, item: Kernel | Collective) -> int:
        launch = len(self.launch_stream)
        self.launch_stream.append(self._stream(item.stream))
        self.launch_mark.append(self._mark())
        self.launch_op.append(op)
        self.last_launch[op] = launch
        return launch

    def _close(self) -> None:
        if self.marks == self.open_mark:
            return
        by_stream: dict[int, list[int]] = {}
        for launch in self.open_launches:
            by_stream.setdefault(self.launch_stream[launch], []).append(launch)
        launches = tuple((s, np.array(ls, dtype=np.int64)) for s, ls in by_stream.items())
        self.instructions.append(Stretch(self.open_mark, self.marks, launches))
        self.open_mark, self.open_launches = self.marks, []

    def _wait(self, waiter: str, on: int | str, here: int) -> None:
        # A synchronous device has no compute stream of its own: whoever waits there is the host.
        by_host = waiter == HOST or (self.synchronous and waiter not in self.carriers)
        number = HOST_CLOCK if by_host else self._stream(waiter)
        if isinstance(on, str):
            self._close()
            if on == HOST:
                raise StepsightError(f"op {here} waits for the host, which every launch does anyway")
            self.instructions.append(Join(number, -1, self._stream(on)))
            return
        if not 0 <= on < here:
            raise StepsightError(f"op {here} waits for op {on}, which does not come before it")
        launch = self.last_launch.get(on)
        if launch is not None:
            self._close()
            self.awaited.add(launch)
            self.instructions.append(Join(number, launch, -1))

    def _meet(self, launch: int, collective: Collective) -> None:
        self._close()
        ordinal = self.ordinals.get(collective.group, 0)
        self.ordinals[collective.group] = ordinal + 1
        after = tuple(self._stream(s) for s in collective.after)
        stream = self.launch_stream[launch]
        self.instructions.append(Meeting(launch, stream, collective.group, ordinal, after, collective.kind))
