"""The walk of a schedule, block by block: a fast path of the walk for pipelines of repeated blocks.

Every distinct block is priced and lowered once. On one stream, the launches between two joins end at
``max(clock, host + lead) + total``, so that they are one launch here, and a stage is a list of blocks of few
launches. Recurrence, durations, host times, conditions and contention are those of the full walk, launch by
launch and micro-batch by micro-batch: both agree within 1 % (`tests/simulate/test_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.families import category
from stepsight.platform.load import Platform
from stepsight.program.job import COMPUTE, Collective, Group, Job, Op, RankProgram
from stepsight.program.schedule import Block, Event, Schedule, Stage, Transfer
from stepsight.simulate.contention import MOST_WALKS, Streams, slowed_us
from stepsight.simulate.lowering import (
    HOST_CLOCK,
    Instruction,
    Join,
    LoweredProgram,
    Meeting,
    Stretch,
    launches_of,
)
from stepsight.simulate.periods import continued
from stepsight.simulate.price import PricedJob, price

STEPS = 3
"""Steps walked back to back, as in the full walk."""
SAME_STEP = 1e-6
CONVERGED, MOVED = 1e-3, 1e-2
"""Of the step: it, and all launches of a stage together, change by less than this when what overlaps is
stretched once more."""
EVEN = 5e-3
"""Of the step: what blocks that are left out may take more or less than those that are walked."""
PIPELINE = "pipeline"
RUN, MEET, JOIN, HOST, EXPOSED = range(5)
"""What a block consists of: launches in a row, a collective, a wait, host time, and a collective that compute
waits for at once."""
BLOCK, MESSAGE, ARRIVAL, BOUNDARY = range(4)
"""What a stage does."""
Time = Any
"""µs: a number, or an array of one for each question."""
Code = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Question:
    """What if launches of some names (`BlockWalk.names`) took other times: ``factors`` on them, ``host`` on
    the host's; those named ``slow`` take longer by their own spread."""

    factors: dict[str, float] = field(default_factory=dict)
    host: float = 1.0
    slow: str = ""


AS_PRICED = Question()


@dataclass(frozen=True, slots=True)
class _Distinct:
    """A distinct block, or the operator of a message or an arrival: its times alone, by mark and launch.

    ``runs``: its launches, those in a row together; ``streams``: on which clock each of them is; ``row``: the
    number of the first of them among those of all distinct blocks.
    """

    tape: LoweredProgram
    host_us: FloatArray
    device_us: FloatArray
    slower_us: FloatArray
    names: tuple[str, ...]
    runs: tuple[IntArray, ...]
    streams: list[int]
    kind: list[str]
    row: int

    def asked(self, questions: Sequence[Question]) -> tuple[FloatArray, FloatArray]:
        """Host times by mark and device times by launch, one column per question."""
        host = np.repeat(self.host_us[:, None], len(questions), axis=1)
        device = np.repeat(self.device_us[:, None], len(questions), axis=1)
        names = np.array(self.names, dtype=object)
        for c, q in enumerate(questions):
            host[:, c] *= q.host
            for name, factor in q.factors.items():
                device[names == name, c] *= factor
            if q.slow:
                device[:, c] += np.where(names == q.slow, self.slower_us, 0.0)
        return host, device


@dataclass(frozen=True, slots=True)
class _Asked:
    """All distinct blocks for some questions, by number: what they do, or the host's time before and after a
    message. By launch (`_Distinct.row`) and question: how long it takes, and the share of it that was not
    taken away."""

    codes: dict[int, Code]
    host_us: dict[int, tuple[Time, Time]]
    device_us: FloatArray
    kept: FloatArray


@dataclass(slots=True)
class _Stage:
    """The launches of one stage in order: which distinct one each is, for how many it stands, its stream, and
    how much longer it takes than alone."""

    row: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    clocks: dict[str, int] = field(default_factory=dict)
    longer_us: FloatArray = field(default_factory=lambda: np.zeros(0))

    def add(self, one: _Distinct, count: int, stream: str = "") -> int:
        """Launches of a block or, with its ``stream``, of a message; where they begin."""
        first, launches = len(self.row), len(one.runs)
        self.row += range(one.row, one.row + launches)
        self.count += [count] * launches
        self.stream += [self.clocks[stream]] if stream else one.streams
        self.kind += one.kind
        return first


@dataclass(slots=True)
class _Clocks:
    """Clocks of one stage, messages that have come, and the states where blocks of its period began."""

    now: list[Time]
    arrived: dict[int, Time] = field(default_factory=dict)
    states: list[list[Time]] = field(default_factory=list)
    even: bool = True

    def boundary(self, skipped: int) -> None:
        """A block of the steady part begins; after the last, ``skipped`` more continue as it advanced."""
        self.states.append([*self.now, *self.arrived.values()])
        if skipped < 0:
            return
        states = [np.array(state) for state in self.states]
        moved = list(continued(states, skipped))
        half = (len(states) - 1) // 2
        drift = states[-1] - 2 * states[-1 - half] + states[-1 - 2 * half]
        self.even = bool((skipped * np.abs(drift) / max(half, 1) < EVEN * np.max(moved, axis=0)).all())
        self.arrived = dict(zip(self.arrived, moved[len(self.now) :], strict=True))
        self.now = moved[: len(self.now)]
        self.states.clear()


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
        programs = tuple(RankProgram(each) for each in ops.values())
        named = [op.collective.group for each in ops.values() for op in each if op.collective]
        groups = {
            name: tuple(Group(name, (r,)) for r in range(len(programs))) for name in dict.fromkeys(named)
        }
        job = Job(programs, tuple(range(len(programs))), groups)
        self.priced: PricedJob = price(job, platform, fold_identical=False, times=tuple(times.values()))
        self.number = {key: i for i, key in enumerate(ops)}
        blocks = {self.number[_key(e)] for s in schedule.stages for e in s.events if isinstance(e, Block)}
        self.clocks = {COMPUTE: 1}
        self.distinct = self._distinct(blocks)
        self.stages = [_Stage(clocks=dict(self.clocks)) for _ in schedule.stages]
        self.actions = self._actions()
        for each in self.stages:
            each.longer_us = np.zeros(len(each.row))
        self.as_priced = self._asked([AS_PRICED])
        self.first = self._settle()

    @property
    def even(self) -> bool:
        """Whether blocks that are left out are known to repeat those that are walked."""
        return all(stage.even for stage in self.first)

    def step_us(self) -> float:
        """The step's time."""
        return float(self.steps_us([AS_PRICED])[0])

    def steps_us(self, questions: Sequence[Question]) -> FloatArray:
        """The step's time for every question."""
        if list(questions) == [AS_PRICED]:
            asked, clocks = self.as_priced, [_Clocks(stage.now.copy()) for stage in self.first]
            device = self._device(asked)
        else:
            asked, clocks = self._asked(questions), self._start(len(questions))
            device = self._device(asked)
            self._once(clocks, asked, device)
        after = took = _finish(clocks)
        for _ in range(STEPS - 1):
            self._once(clocks, asked, device)
            before, after = after, _finish(clocks)
            if np.allclose(after - before, took, rtol=SAME_STEP):
                break
            took = after - before
        return np.atleast_1d(np.asarray(after - before, dtype=np.float64))

    def names(self) -> list[str]:
        """Categories of kernels and groups of collectives (messages between stages: pipeline)."""
        return list(dict.fromkeys(name for one in self.distinct for name in one.names))

    def spent_us(self) -> dict[str, float]:
        """By name: how long its launches run in a step, on all stages together."""
        alone_us = self.as_priced.device_us[:, 0]
        times = np.zeros(len(alone_us))
        for stage in self.stages:
            longer = 1 + stage.longer_us / np.maximum(alone_us[stage.row], 1e-9)
            np.add.at(times, stage.row, stage.count * longer)
        total = dict.fromkeys(self.names(), 0.0)
        for one in self.distinct:
            for row, run in enumerate(one.runs, one.row):
                for launch in run.tolist():
                    total[one.names[launch]] += float(times[row] * one.device_us[launch])
        return total

    def _distinct(self, blocks: set[int]) -> list[_Distinct]:
        """By number of the program: its times, and its launches between joins."""
        lane_of = {int(n): (p, k) for p in self.priced.lanes for k, n in enumerate(p.lane.program_of_rank)}
        found: list[_Distinct] = []
        row = 0
        for number, program in enumerate(self.priced.job.programs):
            p, k = lane_of[number]
            tape = p.lane.tape
            for name in tape.streams if number in blocks else ():
                self.clocks.setdefault(name, len(self.clocks) + 1)
            runs = [run for step in tape.instructions for run in _runs(step)]
            streams = [self.clocks.get(tape.streams[tape.launch_stream[run[0]]], 0) for run in runs]
            kinds = {step.launch: step.kind for step in tape.instructions if isinstance(step, Meeting)}
            kind = [kinds.get(int(run[0]), "") for run in runs]
            host, device = (a[:, 0, min(k, a.shape[2] - 1)] for a in (p.times.host_us, p.times.device_us))
            items = [item for op in program.ops for item in launches_of(op)]
            names = [axis_of(i) if isinstance(i, Collective) else category(i.family) for i in items]
            slower = device * np.expm1(p.spread[:, k])
            found.append(_Distinct(tape, host, device, slower, tuple(names), tuple(runs), streams, kind, row))
            row += len(runs)
        return found

    def _actions(self) -> list[tuple[Any, ...]]:
        """What all stages do, in an order in which no message comes before both its ends."""
        found: list[tuple[Any, ...]] = []
        met: dict[Hashable, Any] = {}
        at = [0] * len(self.stages)
        able = list(range(len(self.stages)))[::-1]
        starts = [{at: k for k, at in enumerate(s.starts)} if s.skipped else {} for s in self.schedule.stages]
        while able:
            i = able.pop()
            stage, planned = self.stages[i], self.schedule.stages[i]
            last = len(starts[i]) - 1
            repeated = range(*planned.starts[-2:]) if planned.skipped else range(0)
            while at[i] < len(planned.events):
                here, event = at[i], planned.events[at[i]]
                at[i] += 1
                if here in starts[i]:
                    found.append((BOUNDARY, i, planned.skipped if starts[i][here] == last else -1, None))
                number = self.number[_key(event)]
                count = 1 + (planned.skipped if here in repeated else 0)
                if isinstance(event, Block):
                    found.append((BLOCK, i, number, stage.add(self.distinct[number], count)))
                elif isinstance(event, Transfer):
                    stream = stage.clocks.setdefault(event.stream, len(stage.clocks) + 1)
                    mine = i, number, stage.add(self.distinct[number], count, event.stream), stream
                    theirs = met.setdefault(event.key, mine)
                    if theirs is mine:
                        break
                    both = (mine, theirs) if event.sends else (theirs, mine)
                    met[event.key] = len(found)
                    found.append((MESSAGE, *both, len(found)))
                    able.append(theirs[0])
                else:
                    found.append((ARRIVAL, i, number, (met.pop(event.key), event.host)))
        return found

    def _asked(self, questions: Sequence[Question]) -> _Asked:
        gpu = self.platform.spec.gpu
        codes, host_us = {}, {}
        device_us: list[FloatArray] = []
        kept: list[FloatArray] = []
        for number, one in enumerate(self.distinct):
            host, device = one.asked(questions)
            tape = one.tape
            clock = [self.clocks.get(name, 0) for name in tape.streams]
            code: Code = []
            for step in tape.instructions:
                if isinstance(step, Stretch):
                    elapsed = np.cumsum(host[step.lo : step.hi], axis=0)
                    for stream, run in step.launches:
                        time = device[run]
                        rest = np.cumsum((time + gpu.kernel_gap_us)[::-1], axis=0)[::-1]
                        ready = elapsed[tape.launch_mark[run] - step.lo] + rest
                        lead = ready.max(axis=0) - rest[0] + gpu.launch_us
                        code.append((RUN, clock[stream], _plain(lead)))
                        device_us.append(rest[0] - gpu.kernel_gap_us)
                        alone = one.device_us[run]
                        kept.append(alone @ (time > 0) / max(float(alone.sum()), 1e-9))
                    code.append((HOST, 0, _plain(elapsed[-1])))
                elif isinstance(step, Join):
                    waiter = 0 if step.waiter == HOST_CLOCK else clock[step.waiter]
                    if waiter == 1 and code and code[-1] == (MEET, clock[step.on_stream], (1,)):
                        code[-1] = (EXPOSED, clock[step.on_stream], None)
                    else:
                        code.append((JOIN, waiter, clock[step.on_stream]))
                elif isinstance(step, Meeting):
                    code.append((MEET, clock[step.stream], tuple(clock[s] for s in step.after)))
                    device_us.append(device[step.launch])
                    kept.append((device[step.launch] > 0).astype(float))
            codes[number] = code
            first = 1 + tape.launches
            host_us[number] = _plain(host[:first].sum(axis=0)), _plain(host[first:].sum(axis=0))
        shape = (-1, len(questions))
        return _Asked(codes, host_us, np.reshape(device_us, shape), np.reshape(kept, shape))

    def _start(self, questions: int) -> list[_Clocks]:
        zero: Time = 0.0 if questions == 1 else np.zeros(questions)
        return [_Clocks([zero] * (len(stage.clocks) + 1)) for stage in self.stages]

    def _device(self, asked: _Asked) -> list[list[Time]]:
        """By stage: how long each launch takes."""
        found = []
        for stage in self.stages:
            times = asked.device_us[stage.row] + stage.longer_us[:, None] * asked.kept[stage.row]
            found.append(times[:, 0].tolist() if times.shape[1] == 1 else list(times))
        return found

    def _settle(self) -> list[_Clocks]:
        """Stretches what overlaps until nothing changes, as the full walk does; the clocks after a step."""
        asked, contention = self.as_priced, self.platform.spec.contention
        on = [Streams.of(stage.stream, stage.kind) for stage in self.stages]
        before = 0.0
        for turn in range(MOST_WALKS + 1):
            clocks = self._start(1)
            begin, end = self._once(clocks, asked, self._device(asked))
            finish = float(_finish(clocks))
            weight = 1.0 if turn < MOST_WALKS // 2 else 0.5
            moved = 0.0
            for stage, mine, b, e in zip(self.stages, on, begin, end, strict=True):
                change = slowed_us(mine, np.array([b]), np.array([e]), contention)[0] - stage.longer_us
                stage.longer_us += weight * change
                moved = max(moved, float(np.abs(change).sum()))
            if abs(finish - before) < CONVERGED * finish and moved < MOVED * finish:
                break
            before = finish
        return clocks

    def _once(
        self, stages: list[_Clocks], asked: _Asked, device: list[list[Time]]
    ) -> tuple[list[list[Time]], list[list[Time]]]:
        """One step of all stages: when every launch begins and ends."""
        codes, host_us = asked.codes, asked.host_us
        later: Callable[..., Time] = max if asked.device_us.shape[1] == 1 else np.maximum
        gap_us, launch_us = self.platform.spec.gpu.kernel_gap_us, self.platform.spec.gpu.launch_us
        begin, end = ([[0.0] * len(times) for times in device] for _ in range(2))
        for what, one, other, third in self.actions:
            if what == BLOCK:
                now, times, begins, ends, k = stages[one].now, device[one], begin[one], end[one], third
                for kind, stream, more in codes[other]:
                    if kind == RUN:
                        begins[k] = at = later(now[stream], now[0] + more)
                        ends[k] = at = at + times[k]
                        now[stream] = at + gap_us
                        k += 1
                    elif kind == HOST:
                        now[0] = now[0] + more
                    elif kind == EXPOSED:
                        begins[k] = at = later(later(now[0] + launch_us, now[stream]), now[1])
                        ends[k] = now[stream] = now[1] = at + times[k]
                        k += 1
                    elif kind == JOIN:
                        now[stream] = later(now[stream], now[more])
                    else:
                        at = later(now[0] + launch_us, now[stream])
                        for awaited in more:
                            at = later(at, now[awaited])
                        begins[k] = at
                        ends[k] = now[stream] = at + times[k]
                        k += 1
            elif what == MESSAGE:
                (s, sends, k, out), (r, receives, m, into) = one, other
                sender, receiver = stages[s], stages[r]
                sent = _launched(sender.now, host_us[sends], launch_us)
                received = _launched(receiver.now, host_us[receives], launch_us)
                at = later(later(sent, sender.now[1]), sender.now[out])
                at = later(later(received, receiver.now[into]), at)
                begin[s][k] = begin[r][m] = at
                stop = at + later(device[s][k], device[r][m])
                end[s][k] = end[r][m] = sender.now[out] = receiver.now[into] = receiver.arrived[third] = stop
            elif what == ARRIVAL:
                now, (first, then), (key, host_waits) = stages[one].now, host_us[other], third
                now[1] = later(now[1], stages[one].arrived.pop(key))
                host = now[0] + first
                now[0] = (later(host, now[1]) if host_waits else host) + then
            else:
                stages[one].boundary(other)
        return begin, end


def _runs(step: Instruction) -> list[IntArray]:
    """The launches of an instruction, by stream."""
    if isinstance(step, Stretch):
        return [launches for _, launches in step.launches]
    return [np.array([step.launch])] if isinstance(step, Meeting) else []


def _launched(now: list[Time], host_us: tuple[Time, Time], launch_us: float) -> Time:
    """The host launches a message: when it can begin at the earliest."""
    at = now[0] + host_us[0]
    now[0] = at + host_us[1]
    return at + launch_us


def _plain(values: FloatArray) -> Time:
    """A number where there is one question."""
    return float(values[0]) if len(values) == 1 else values


def _finish(stages: Sequence[_Clocks]) -> Time:
    """When the last clock stands still."""
    return np.max([np.max(stage.now, axis=0) for stage in stages], axis=0)


def axis_of(item: Collective) -> str:
    """The axis of parallelism of a collective: its group; pipeline for messages between stages."""
    between = item.kind == "send_recv" and item.group.startswith(("forward ", "backward "))
    return PIPELINE if between or item.group == "ends" else item.group


def _key(event: Event) -> int:
    return id(event) if isinstance(event, Block) else id(event.op)


def _counted(stage: Stage) -> Iterator[tuple[Event, float]]:
    """Events with how often each runs in a step."""
    lo, hi = stage.starts[-2:] if stage.skipped else (0, 0)
    for i, event in enumerate(stage.events):
        yield event, 1.0 + (stage.skipped if lo <= i < hi else 0)
