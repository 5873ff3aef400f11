"""The walk of a schedule, block by block: a fast path of the walk for pipelines of repeated blocks.

Between two messages a rank does a block that touches no other rank. The walk is linear in max and plus, so a
block is a matrix: how long after each clock at its start each clock stands at its end. Every distinct block
is priced, lowered and walked once; the schedule is then walked in matrices. Durations, host times and
conditions are those of `price`. Compute and communication of one block slow each other as in the full walk,
from the clocks at which the block was last entered; messages between stages and compute do so on average over
a step. Both walks agree within 1 % (pipelines that interleave or shard gradients: 8 %;
`tests/simulate/test_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.families import category
from stepsight.platform.load import Platform
from stepsight.program.job import COMPUTE, Collective, Group, Job, Op, RankProgram
from stepsight.program.schedule import Block, Event, Schedule, Stage, Transfer
from stepsight.simulate.contention import settle
from stepsight.simulate.engine import Priced, Walk, walk
from stepsight.simulate.intervals import covered_by_rank
from stepsight.simulate.lowering import Lane, launches_of
from stepsight.simulate.price import PricedJob, PricedLane, price
from stepsight.simulate.rendezvous import Clocks

NEVER = -1e15
"""A clock that holds nobody up."""
STEPS = 3
"""Steps walked back to back, as in the full walk."""
SAME_STEP = 1e-6
HOST, PIPELINE = "host", "pipeline"
Time = Any
"""µs: a number, or an array of one for each question."""
Rows = list[list[tuple[int, Time]]]
"""A block's matrix: of every clock after it, which clocks before it it follows, and how much later."""


@dataclass(frozen=True, slots=True)
class Question:
    """What if launches of some names (`BlockWalk.names`) took other times: ``factors`` on them, ``host`` on
    the host's; those named ``slow`` take longer by their own spread."""

    factors: dict[str, float] = field(default_factory=dict)
    host: float = 1.0
    slow: str = ""


AS_PRICED = Question()


@dataclass(slots=True)
class _Stage:
    """One stage under way: its clocks, its streams of messages, and messages that have come."""

    clocks: list[Time]
    streams: dict[str, Time] = field(default_factory=dict)
    at: int = 0
    arrived: dict[Hashable, Time] = field(default_factory=dict)
    states: list[list[Time]] = field(default_factory=list)

    def boundary(self, last: bool, skipped: int) -> None:
        """A block of the steady part begins; after the last, the others continue as it advanced."""
        self.states.append([*self.clocks, *self.arrived.values(), *self.streams.values()])
        if not last or len(self.states) < 2:
            return
        before, now = self.states[-2:]
        moved = [b + skipped * (b - a) for a, b in zip(before, now, strict=True)]
        n, m = len(self.clocks), len(self.arrived)
        self.clocks = moved[:n]
        self.arrived = dict(zip(self.arrived, moved[n : n + m], strict=True))
        self.streams = dict(zip(self.streams, moved[n + m :], strict=True))


@dataclass(slots=True)
class _Seen:
    """By stage: which blocks and messages ran, from when to when; by block: the clocks at its last start."""

    blocks: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    messages: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    entries: dict[int, list[float]] = field(default_factory=dict)


class BlockWalk:
    """A schedule priced once on a platform; `steps_us` answers any number of questions about it."""

    def __init__(self, schedule: Schedule, platform: Platform) -> None:
        self.schedule, self.platform = schedule, platform
        ops: dict[int, tuple[Op, ...]] = {}
        times: dict[int, float] = {}
        for stage in schedule.stages:
            for event, count in _counted(stage):
                key = _key(event)
                ops[key] = event.ops if isinstance(event, Block) else (event.op,)
                times[key] = times.get(key, 0.0) + count
        self.number = {key: i for i, key in enumerate(ops)}
        programs = tuple(RankProgram(each) for each in ops.values())
        named = [op.collective.group for each in ops.values() for op in each if op.collective]
        groups = {
            name: tuple(Group(name, (r,)) for r in range(len(programs))) for name in dict.fromkeys(named)
        }
        job = Job(programs, tuple(range(len(programs))), groups)
        self.times = tuple(times.values())
        self.priced: PricedJob = price(job, platform, alike_once=False, times=self.times)
        blocks = {_key(e) for s in schedule.stages for e in s.events if isinstance(e, Block)}
        of_blocks = {self.number[key] for key in blocks}
        apart = [one for p in self.priced.lanes for one in _by_rank(p)]
        self.lanes = [p for p in apart if int(p.lane.ranks[0]) in of_blocks]
        self.ends = [p for p in apart if int(p.lane.ranks[0]) not in of_blocks]
        streams = dict.fromkeys(n for p in self.lanes for n in p.lane.tape.streams if n != COMPUTE)
        self.clocks = {HOST: 0, COMPUTE: 1} | {name: i + 2 for i, name in enumerate(streams)}
        self.stretched: tuple[Priced, ...] = tuple(p.times for p in self.lanes)
        self.longer_us = np.zeros(len(programs))
        self._settle()

    def step_us(self) -> float:
        """The step's time."""
        return float(self.steps_us([AS_PRICED])[0])

    def steps_us(self, questions: Sequence[Question]) -> FloatArray:
        """The step's time for every question."""
        return np.atleast_1d(np.asarray(self._walk(questions), dtype=np.float64))

    def names(self) -> list[str]:
        """Categories of kernels and groups of collectives (messages between stages: pipeline)."""
        return list(dict.fromkeys(n for p in (*self.lanes, *self.ends) for n in self._names(p)))

    def spent_us(self) -> dict[str, float]:
        """By name: how long its launches run in a step, on all stages together."""
        total: dict[str, float] = {}
        for p, times in (*zip(self.lanes, self.stretched, strict=True), *((p, p.times) for p in self.ends)):
            count = np.array([self.times[rank] for rank in p.lane.ranks.tolist()])
            device = np.broadcast_to(times.device_us[:, 0], (p.lane.tape.launches, len(count)))
            for name, us in zip(self._names(p), (device * count).sum(axis=1).tolist(), strict=True):
                total[name] = total.get(name, 0.0) + us
        return total

    def _names(self, p: PricedLane) -> list[str]:
        items = [item for op in self._ops(p) for item in launches_of(op)]
        return [axis_of(i) if isinstance(i, Collective) else category(i.family) for i in items]

    def _settle(self) -> None:
        """Stretches what overlaps: inside blocks from the clocks at their last start, and messages between
        stages under blocks by how much they overlap on average."""
        seen, contention = _Seen(), self.platform.spec.contention
        self._walk([AS_PRICED], seen, steps=1)
        lanes = [p.lane for p in self.lanes]
        starts = [self._entered(p, seen) for p in self.lanes]
        _, self.stretched, _ = settle(
            lanes, self.stretched, contention, lambda t: self._engine(lanes, t, starts, 1, keep=True)
        )
        longer, count = np.zeros(len(self.longer_us)), np.zeros(len(self.longer_us))
        for stage in seen.messages:
            blocks, messages = (np.array(x[stage]) for x in (seen.blocks, seen.messages))
            for mine, other, slowdown in (
                (messages, blocks, contention.comm_under_compute),
                (blocks, messages, contention.compute_under_comm),
            ):
                covered = covered_by_rank(*(a[None] for a in (*mine[:, 1:].T, *other[:, 1:].T)))[0]
                np.add.at(longer, mine[:, 0].astype(int), covered * (slowdown - 1))
                np.add.at(count, mine[:, 0].astype(int), 1)
        self.longer_us = longer / np.maximum(count, 1)

    def _entered(self, p: PricedLane, seen: _Seen) -> Clocks:
        """The clocks of a lane's blocks at their start, relative to compute."""
        index = [0, *(self.clocks[n] for n in p.lane.tape.streams)]
        state = np.array(
            [np.array(seen.entries[r])[index] - seen.entries[r][1] for r in p.lane.ranks.tolist()]
        ).T
        return Clocks(state[:1], tuple(state[i : i + 1] for i in range(1, len(index))))

    def _engine(
        self, lanes: Sequence[Lane], times: Sequence[Priced], starts: Sequence[Clocks], width: int, *,
        keep: bool = False,
    ) -> Walk:  # fmt: skip
        gpu, count = self.platform.spec.gpu, 0
        packed = []
        for lane in lanes:  # ranks count from zero without gaps
            packed.append(replace(lane, ranks=np.arange(count, count + len(lane.ranks))))
            count += len(lane.ranks)
        names = {op.collective.group for p in self.lanes for op in self._ops(p) if op.collective}
        groups = {name: tuple(Group(name, (r,)) for r in range(count)) for name in names}
        return walk(
            packed, times, groups, start=starts, launch_us=gpu.launch_us, gap_us=gpu.kernel_gap_us,
            configurations=width, keep=keep,
        )  # fmt: skip

    def _ops(self, p: PricedLane) -> tuple[Op, ...]:
        return self.priced.job.programs[int(p.programs[0])].ops

    def _asked(self, p: PricedLane, now: Priced, questions: Sequence[Question]) -> Priced:
        """A lane's times, one configuration per question."""
        if len(questions) == 1 and questions[0] == AS_PRICED:
            return now
        device: FloatArray = np.repeat(now.device_us, len(questions), axis=1)
        host: FloatArray = np.repeat(now.host_us, len(questions), axis=1)
        alone = np.broadcast_to(p.times.device_us, now.device_us.shape)[:, 0]
        names = np.array(self._names(p))
        for c, q in enumerate(questions):
            host[:, c] *= q.host
            for name, factor in q.factors.items():
                mine = names == name
                device[mine, c] = 0.0 if factor == 0 else device[mine, c] + alone[mine] * (factor - 1)
            if q.slow:
                mine = names == q.slow
                device[mine, c] += alone[mine] * np.expm1(p.spread[mine])
        return Priced(host, device, now.late_us)

    def _matrices(self, questions: Sequence[Question]) -> dict[int, Rows]:
        """By block: how its clocks move."""
        n, asked = len(self.clocks), len(questions)
        found: dict[int, Rows] = {}
        for p, now in zip(self.lanes, self.stretched, strict=True):
            ranks = len(p.lane.ranks)
            times = self._asked(p, now, questions)
            tiled = Priced(np.tile(times.host_us, (1, n, 1)), np.tile(times.device_us, (1, n, 1)))
            basis = np.full((n, n, asked, ranks), NEVER)
            basis[np.arange(n), np.arange(n)] = 0.0  # clock, clock before, question, rank
            out = basis.reshape(n, n * asked, ranks)
            start = Clocks(out[0], tuple(out[self.clocks[s]] for s in p.lane.tape.streams))
            ended = self._engine([p.lane], [tiled], [start], n * asked).clocks[0]
            out = out.copy()
            for name, clock in zip(
                (HOST, *p.lane.tape.streams), (ended.host_us, *ended.stream_us), strict=True
            ):
                out[self.clocks[name]] = clock
            shaped = out.reshape(n, n, asked, ranks)
            shaped[1] += self.longer_us[p.lane.ranks]
            for k, rank in enumerate(p.lane.ranks.tolist()):
                found[rank] = _rows(shaped[:, :, :, k])
        return found

    def _ended(self, questions: Sequence[Question]) -> dict[int, tuple[Time, Time, Time]]:
        """Of messages' ends and arrivals: the host's time before and after, and the message's time."""
        found = {}
        width = len(questions)
        for p in self.ends:
            times, ranks = self._asked(p, p.times, questions), len(p.lane.ranks)
            host = np.broadcast_to(times.host_us, (p.lane.tape.marks, width, ranks))
            device = np.broadcast_to(times.device_us, (p.lane.tape.launches, width, ranks)).sum(axis=0)
            device = device + self.longer_us[p.lane.ranks]
            first = 1 + p.lane.tape.launches
            for k, rank in enumerate(p.lane.ranks.tolist()):
                parts = host[:first, :, k].sum(axis=0), host[first:, :, k].sum(axis=0), device[:, k]
                found[rank] = tuple(float(a[0]) if width == 1 else a for a in parts)
        return found  # type: ignore[return-value]

    def _walk(self, questions: Sequence[Question], seen: _Seen | None = None, steps: int = STEPS) -> Time:
        """The step's time."""
        matrices, ended = self._matrices(questions), self._ended(questions)
        later: Callable[..., Time] = max if len(questions) == 1 else np.maximum
        zero = 0.0 if len(questions) == 1 else np.zeros(len(questions))
        stages = [_Stage([zero] * len(self.clocks)) for _ in self.schedule.stages]
        before = after = zero
        took = None
        for _ in range(steps):
            self._once(stages, matrices, ended, later, seen)
            before, after = after, np.max([np.max(s.clocks, axis=0) for s in stages], axis=0)
            if took is not None and np.allclose(after - before, took, rtol=SAME_STEP):
                break
            took = after - before
        return after - before

    def _once(
        self, stages: list[_Stage], matrices: dict[int, Rows], ended: dict[int, tuple[Time, Time, Time]],
        later: Callable[..., Time], seen: _Seen | None,
    ) -> None:  # fmt: skip
        """One step of all stages; a stage that waits for the other end of a message lets the others go on."""
        met: dict[Hashable, tuple[int, Transfer, Time, Time]] = {}
        for stage in stages:
            stage.at = 0
            stage.states.clear()
        able = list(range(len(stages)))[::-1]
        while able:
            i = able.pop()
            stage, planned = stages[i], self.schedule.stages[i]
            starts = {at: k for k, at in enumerate(planned.starts)} if planned.skipped else {}
            events = planned.events
            while stage.at < len(events):
                at, event = stage.at, events[stage.at]
                if at in starts and len(stage.states) <= starts[at]:
                    stage.boundary(starts[at] == len(starts) - 1, planned.skipped)
                stage.at = at + 1
                if isinstance(event, Block):
                    self._run(stage, i, self.number[id(event)], matrices, later, seen)
                elif not isinstance(event, Transfer):
                    x, (first, rest, _) = stage.clocks, ended[self.number[id(event.op)]]
                    x[1] = later(x[1], stage.arrived.pop(event.key))
                    x[0] = (later(x[0] + first, x[1]) if event.host else x[0] + first) + rest
                elif not self._meet(stages, i, event, met, ended, later, able, seen):
                    break

    def _run(
        self, stage: _Stage, index: int, number: int, matrices: dict[int, Rows], later: Callable[..., Time],
        seen: _Seen | None,
    ) -> None:  # fmt: skip
        x = stage.clocks
        moved = []
        for row in matrices[number]:
            j, w = row[0]
            value = x[j] + w
            for j, w in row[1:]:
                value = later(value, x[j] + w)
            moved.append(value)
        stage.clocks = moved
        if seen is not None:
            seen.entries[number] = x
            seen.blocks.setdefault(index, []).append((number, x[1], moved[1]))

    def _meet(
        self, stages: list[_Stage], i: int, event: Transfer,
        met: dict[Hashable, tuple[int, Transfer, Time, Time]], ended: dict[int, tuple[Time, Time, Time]],
        later: Callable[..., Time], able: list[int], seen: _Seen | None,
    ) -> bool:  # fmt: skip
        """Comes to a message; whether the other end is there already."""
        stage, (first, rest, time) = stages[i], ended[self.number[id(event.op)]]
        x, stream = stage.clocks, event.stream
        x[0] = x[0] + first
        ready = x[0] + self.platform.spec.gpu.launch_us
        if stream in stage.streams:
            ready = later(ready, stage.streams[stream])
        if event.sends:
            ready = later(ready, x[1])
        x[0] = x[0] + rest
        other = met.pop(event.key, None)
        if other is None:
            met[event.key] = (i, event, ready, time)
            return False
        j, theirs, their_ready, their_time = other
        begin = later(ready, their_ready)
        end = begin + later(time, their_time)
        for k, one in ((i, event), (j, theirs)):
            stages[k].streams[one.stream] = end
            if not one.sends:
                stages[k].arrived[one.key] = end
            if seen is not None:
                seen.messages.setdefault(k, []).append((self.number[id(one.op)], begin, end))
        able.append(j)
        return True


def _by_rank(p: PricedLane) -> list[PricedLane]:
    """One lane for each rank: programs of one structure may launch kernels of other categories."""
    found = []
    for k in range(len(p.lane.ranks)):
        mine = slice(k, k + 1)
        host, device = (a[:, :, mine] if a.shape[2] > 1 else a for a in (p.times.host_us, p.times.device_us))
        lane = replace(p.lane, ranks=p.lane.ranks[mine], program_of_rank=p.lane.program_of_rank[mine])
        programs = p.lane.program_of_rank[mine]
        found.append(
            replace(
                p, lane=lane, programs=programs, times=Priced(host, device), source=p.source[:, mine],
                spread=p.spread[:, mine], weight=p.weight[mine],
            )
        )  # fmt: skip
    return found


def axis_of(item: Collective) -> str:
    """The axis of parallelism of a collective: its group; pipeline for messages between stages."""
    between = item.kind == "send_recv" and item.group.startswith(("forward ", "backward "))
    return PIPELINE if between or item.group == "ends" else item.group


def _rows(matrix: FloatArray) -> Rows:
    """(clock after, clock before, question) without what never matters."""
    one = matrix.shape[2] == 1
    return [[(j, float(w[0]) if one else w) for j, w in enumerate(row) if w[0] > NEVER / 2] for row in matrix]


def _key(event: Event) -> int:
    return id(event) if isinstance(event, Block) else id(event.op)


def _counted(stage: Stage) -> Iterator[tuple[Event, float]]:
    """Events with how often each runs in a step."""
    lo, hi = stage.starts[-2:] if stage.skipped else (0, 0)
    for i, event in enumerate(stage.events):
        yield event, 1.0 + (stage.skipped if lo <= i < hi else 0)
