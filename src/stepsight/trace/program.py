"""One rank's step of a trace as a `RankProgram`: host units become ops, calls become launches.

Host times are those the trace shows, op by op, or gathered from other steps or ranks; who times the kernels
(models or the trace itself) is decided later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from stepsight.constants import area
from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.tables import op_class, plain_name
from stepsight.program.job import COMM, COMPUTE, HOST, Collective, HostTimes, Kernel, Op, Wait
from stepsight.program.observation import UNOBSERVED, Observation, OpObservations
from stepsight.trace.calls import Calls
from stepsight.trace.collectives import TracedCollective, collective_of
from stepsight.trace.events import listed
from stepsight.trace.kineto import KinetoTrace
from stepsight.trace.launches import HIDDEN, Launch
from stepsight.trace.link import is_collective_kernel, link
from stepsight.trace.steps import LAUNCH, SYNC, WAIT, HostUnit, Item, Step, find_steps, host_units
from stepsight.trace.waits import StreamId, WaitResolver

C = area("traces")

STEP_END = "end of the step"
"""The name of the host time after a step's last operator."""


@dataclass(frozen=True, slots=True)
class TracedOp:
    """An op of the program with what the trace knew beyond it.

    ``seen`` are the observations of its launches.
    """

    op: Op
    unit: HostUnit
    seen: OpObservations = ()
    launches: tuple[Launch, ...] = ()
    collective: TracedCollective | None = None


@dataclass(slots=True)
class StepProgram:
    """One rank's ops for one step. ``start_us`` is the step's start on the rank's clock."""

    ops: list[TracedOp]
    start_us: float
    end_us: float
    streams: dict[StreamId, str]
    unexplained_us: float = 0.0
    """Time that kernels began late for no reason the trace shows; replay counts it as theirs."""


def step_program(
    calls: Calls, units: list[HostUnit], step: Step, resolver: WaitResolver, world: int, *, sized: bool = True
) -> StepProgram:
    """The ops that the host started within the step, in order, over all its threads.

    Without ``sized``, kernels have neither sizes nor times: enough for host times and collectives.
    """
    builder = _Builder(calls, resolver, world, step, sized=sized)
    for unit in units:
        if step.start_us <= unit.start < step.end_us:
            builder.add(unit)
    builder.finish(step)
    return builder.program


@dataclass(slots=True)
class _Segment:
    """Launches between two points where the host or a stream must wait."""

    waits: list[Wait] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)


class _Builder:
    def __init__(self, calls: Calls, resolver: WaitResolver, world: int, step: Step, *, sized: bool) -> None:
        self.sized = sized
        self.unsized: dict[str, Kernel] = {}
        self.calls, self.linked, self.resolver, self.world = calls, calls.linked, resolver, world
        self.program = StepProgram([], step.start_us, step.end_us, resolver.stream_names)
        self.op_of_launch: dict[int, int] = {}
        self.host_at = step.start_us
        self.phase = "forward"
        self.named: set[int] = set()
        self.pending: list[Wait] = []
        self.queued: set[str] = set()
        self.held_until: dict[StreamId, float] = {}

    def add(self, unit: HostUnit) -> None:
        if unit.op < 0 and all(i.kind == WAIT for i in unit.items):
            # A wait call that the runtime's clock put outside its operator: the next one has it.
            self.pending += [w for item in unit.items for w in self._stream_wait(item)]
            return
        share = self._share(unit)
        t1 = max(0.0, unit.start - self.host_at)
        self.host_at = max([self.host_at, unit.end, *(i.call.end for i in unit.items)])
        at = unit.start
        segment = _Segment(self.pending)
        self.pending = []
        for item in unit.items:
            if item.kind == LAUNCH and item.launch is not None:
                collective = is_collective_kernel(item.launch.gpu[0])
                if collective and segment.launches:
                    at, t1 = self._close(unit, segment, at, item.call.ts, t1, share)
                    segment = _Segment()
                segment.launches.append(item.launch)
                self.named.clear()
                if collective or blocks(item.launch):
                    at, t1 = self._close(unit, segment, at, item.call.end, t1, share)
                    segment = _Segment()
            elif item.kind == SYNC:
                if segment.launches or segment.waits:
                    at, t1 = self._close(unit, segment, at, item.call.ts, t1, share)
                    segment = _Segment()
                self._sync(unit, item, t1 + share * max(0.0, item.call.ts - at))
                at, t1 = item.call.end, 0.0
            else:
                if segment.launches:
                    at, t1 = self._close(unit, segment, at, item.call.ts, t1, share)
                    segment = _Segment()
                segment.waits += self._stream_wait(item)
        self._close(unit, segment, at, unit.end, t1, share, last=True)

    def finish(self, step: Step) -> None:
        """What the host still does in the step after its last operator: the loop's own code."""
        tail_us = step.end_us - self.host_at
        if tail_us > 0.0 and self.program.ops:
            times = HostTimes(tail_us, 0.0, 0.0, 0.0, 0.0)
            self._emit(HostUnit(STEP_END, self.host_at, step.end_us, 0), (), None, (), times)

    def _share(self, unit: HostUnit) -> float:
        """How much of the unit's time was not already covered by another thread's."""
        span = unit.end - unit.start
        alone = max(0.0, unit.end - max(unit.start, self.host_at))
        return alone / span if span > 0 else 1.0

    def _close(
        self, unit: HostUnit, segment: _Segment, start: float, end: float, t1: float, share: float,
        *, last: bool = False,
    ) -> tuple[float, float]:  # fmt: skip
        """Make an op of the segment; returns where the next begins and its T1."""
        if last and not segment.launches and not segment.waits and unit.items:
            # The tail of a unit whose calls are all done: host time only.
            if end - start > 0.05:
                self._emit(unit, (), None, (), self._host_times([], start, end, t1, share))
            return end, 0.0
        blocking = bool(segment.launches) and blocks(segment.launches[-1])
        times = self._host_times(segment.launches, start, end, t1, share)
        if blocking:
            # The call returned once its work was done: what it waited is the simulation's to say.
            blocked = segment.launches[-1]
            own = self._before_blocking(blocked)
            others = self._calls_us(segment.launches[:-1])
            t4 = (others + own) / len(segment.launches)
            times = replace(times, t3=end - blocked.gpu[-1].end, t4=t4)
        kernels: list[Kernel] = []
        seen: list[Observation] = []
        collective: Collective | None = None
        traced: TracedCollective | None = None
        for launch in segment.launches:
            if is_collective_kernel(launch.gpu[0]):
                segment.waits += [] if segment.waits else self._input_wait(launch)
                collective, traced = self._collective(launch)
            else:
                for position in range(len(launch.gpu)):
                    kernel, observed = self._kernel(launch, position)
                    kernels.append(kernel)
                    seen.append(observed)
        if collective is not None:
            unsized = traced is not None and traced.bytes is None
            seen.append(Observation(segment.launches[-1].gpu[0].dur, opaque=unsized))
        calls = len(segment.launches)
        if len(kernels) > calls > 0:  # a graph launch: one call's cost over the many kernels it starts
            t5 = times.t5 * (calls - 1) / max(len(kernels) - 1, 1)
            times = replace(times, t4=times.t4 * calls / len(kernels), t5=t5)
        index = self._emit(
            unit, tuple(kernels), collective, tuple(segment.waits), times, segment.launches, traced, blocking,
            tuple(seen),
        )  # fmt: skip
        for launch in segment.launches:
            self.op_of_launch[launch.index] = index
            self.queued.add(self.program.streams.get(launch.gpu[-1].args.stream, COMPUTE))
        return end, 0.0

    def _host_times(
        self, launches: list[Launch], start: float, end: float, t1: float, share: float
    ) -> HostTimes:
        """T1–T5 of a span by the calls inside; ``share`` of it is not already another thread's."""
        if not launches:
            return HostTimes(t1, 0.0, 0.0, 0.0, share * max(0.0, end - start))
        calls = [x.call for x in launches]
        gaps = [max(0.0, b.ts - a.end) for a, b in pairwise(calls)]
        t2, t3 = max(0.0, calls[0].ts - start), max(0.0, end - calls[-1].end)
        t4 = max(0.0, self._calls_us(launches)) / len(calls)
        t5 = sum(gaps) / len(gaps) if gaps else 0.0
        return HostTimes(t1, share * t2, share * t3, share * t4, share * t5)

    def _calls_us(self, launches: list[Launch]) -> float:
        """The time of launch calls without what they waited for room in the queue."""
        return sum(x.call.dur - self.resolver.held_us.get(x.index, 0.0) for x in launches)

    def _before_blocking(self, launch: Launch) -> float:
        """What a call that returned with its work's end did before that work could begin.

        A copy waits for the GPU's earlier work, recorded or not. A kernel's launch does not: a long one loads
        the kernel's code, which is the host's time.
        """
        first = launch.gpu[0]
        if first.name.startswith(("Memcpy", "Memset", "Copy")):
            return C.BLOCKING_CALL_US
        free = max(launch.call.ts, launch.free_us[0])
        return max(C.BLOCKING_CALL_US, first.ts - free)

    def _emit(
        self, unit: HostUnit, kernels: tuple[Kernel, ...], collective: Collective | None,
        waits: tuple[Wait, ...], times: HostTimes, launches: list[Launch] | tuple[()] = (),
        traced: TracedCollective | None = None, blocking: bool = False, seen: OpObservations = (),
    ) -> int:  # fmt: skip
        name = plain_name(unit.name)
        shapes = _shapes(self.linked.ops[unit.op].sizes_text()) if unit.op >= 0 and self.sized else ()
        kind = op_class(unit.name)
        if kind == "backward":
            self.phase = "backward"
        elif kind == "optimizer" or (self.phase == "backward" and "Optimizer" in name):
            self.phase = "optimizer"
        op = Op(name, kernels, collective, waits, blocking, self.phase, "", shapes, times)
        self.program.ops.append(TracedOp(op, unit, seen, tuple(launches), traced))
        return len(self.program.ops) - 1

    def _kernel(self, launch: Launch, position: int) -> tuple[Kernel, Observation]:
        event = launch.gpu[position]
        stream = self.program.streams.get(event.args.stream, COMPUTE)
        if not self.sized:
            if stream not in self.unsized:
                self.unsized[stream] = Kernel("unsized", stream=stream)
            return self.unsized[stream], UNOBSERVED
        held = self.held_until.get(event.args.stream, 0.0)
        ready = max(launch.call.end, held, launch.free_us[position])
        late = max(0.0, event.ts - ready)
        waited = 0.0
        if late > C.QUEUE_GAP_US:
            # A kernel of another stream may fill the GPU: that the simulation knows.
            waited = min(late, self.resolver.busy.within(ready, event.ts))
            self.program.unexplained_us += late - waited
        return self.calls.kernel(launch, position, stream, late, waited)

    def _input_wait(self, launch: Launch) -> list[Wait]:
        """A collective waits for what made its input, whether or not the trace shows the call."""
        found = self.resolver.held_by(launch)
        index = self.op_of_launch.get(found.launch.index) if found else None
        stream = self.program.streams.get(launch.gpu[0].args.stream)
        return [Wait(stream, index)] if stream is not None and index is not None else []

    def _collective(self, launch: Launch) -> tuple[Collective, TracedCollective]:
        kernel = launch.gpu[0]
        traced = collective_of(self.linked, launch, self.world)
        stream = self.program.streams.get(kernel.args.stream, COMM)
        made = Collective(
            traced.kind, traced.bytes if traced.bytes is not None else 0.0, traced.group, stream,
            traced.dtype, None, kernel.name.split("(")[0], (),
        )  # fmt: skip
        return made, traced

    def _stream_wait(self, item: Item) -> list[Wait]:
        found = self.resolver.stream_wait(item.call, self.named)
        if found is None:
            return []
        self.named.add(found.launch.index)
        ended = found.launch.gpu[-1].end
        self.held_until[found.waiter] = max(self.held_until.get(found.waiter, 0.0), ended)
        waiter = self.program.streams.get(found.waiter)
        on = self._target(found.launch)
        return [Wait(waiter, on)] if waiter is not None and on is not None and waiter != on else []

    def _target(self, launch: Launch) -> int | str | None:
        """The op of a launch; for one of an earlier step, its stream, if nothing new is queued there."""
        index = self.op_of_launch.get(launch.index)
        if index is not None:
            return index
        stream = self.program.streams.get(launch.gpu[-1].args.stream)
        earlier = launch.call.ts < self.program.start_us
        return stream if earlier and stream not in self.queued else None

    def _sync_target(self, launch: Launch) -> int | str | None:
        """What the host waits for; of an earlier step's work, all that its stream still has queued."""
        index = self.op_of_launch.get(launch.index)
        return index if index is not None else self.program.streams.get(launch.gpu[-1].args.stream)

    def _sync(self, unit: HostUnit, item: Item, t1: float) -> None:
        held = self.resolver.host_sync(item.call)
        on = [t for x in held if (t := self._sync_target(x)) is not None]
        if not held and item.call.name == HIDDEN:
            on = [COMPUTE]
        ended = max((x.gpu[-1].end for x in held), default=item.call.ts)
        # From the end of the awaited kernel to the host's return; a call that found nothing costs itself.
        after = item.call.end - max(ended, item.call.ts) if held else min(item.call.dur, C.SYNC_CALL_US)
        if not held and item.call.ts < self.resolver.first_call_us:
            after = item.call.dur  # for work from before the recording
        times = HostTimes(t1, 0.0, 0.0, 0.0, max(0.0, min(after, item.call.dur)))
        waits = tuple(Wait(HOST, i) for i in on)
        alone = HostUnit(item.call.name, item.call.ts, item.call.end, unit.thread)
        self._emit(alone, (), None, waits, times)


def blocks(launch: Launch) -> bool:
    """Whether the call returned only when its work was done, as a copy to pageable memory does."""
    if launch.call.dur <= 3 * C.BLOCKING_CALL_US:
        return False
    return launch.call.ts < launch.gpu[-1].end <= launch.call.end + C.RETURN_SLACK_US


@lru_cache(maxsize=16384)
def _shapes(sizes: bytes) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(s) for s in listed(sizes) if isinstance(s, list) and s and all(isinstance(x, int) for x in s)
    )


def trace_samples(trace: KinetoTrace) -> list[HostSample]:
    """Every op of every step of one rank's trace."""
    linked = link(trace)
    calls, units, resolver = Calls(linked), host_units(linked), WaitResolver(linked)
    programs = (step_program(calls, units, step, resolver, trace.world_size) for step in find_steps(linked))
    return [sample for program in programs for sample in samples_of(program)]


def samples_of(program: StepProgram) -> list[HostSample]:
    """Every op of a traced step as a host sample."""
    return [
        HostSample(
            name, before, launches, t.op.overhead_us, max(t.unit.inner_ops, 1),
            t.launches[0].call.name if t.launches else "", place,
        )
        for t, (name, before, launches, place) in zip(program.ops, _places(program), strict=True)
        if t.op.overhead_us is not None
    ]  # fmt: skip


def _places(program: StepProgram) -> list[tuple[str, str, int, str]]:
    """Where in the step each op stands: its name, the op before it, its launches, and which of the same three
    it is, as "2/3"."""
    befores = ["", *(t.op.name for t in program.ops[:-1])] if program.ops else []
    like = [
        (t.op.name, b, len(t.op.kernels) + (t.op.collective is not None))
        for b, t in zip(befores, program.ops, strict=True)
    ]
    total = Counter(like)
    seen: Counter[tuple[str, str, int]] = Counter()
    places = []
    for one in like:
        seen[one] += 1
        places.append((*one, f"{seen[one]}/{total[one]}"))
    return places


def gathered(programs: Iterable[StepProgram]) -> Gathered:
    """The host samples of several traced steps."""
    return pooled(samples_of(program) for program in programs)


def pooled(samples: Iterable[list[HostSample]]) -> Gathered:
    """Host samples of several steps or ranks together."""
    result = Gathered()
    for found in samples:
        result.add(found)
    return result


def with_individual(program: StepProgram, others: Gathered) -> StepProgram:
    """The same ops with host times from other steps or ranks, never from this one; an op that the others
    never saw is the platform's to time."""
    ops = [
        replace(t, op=replace(t.op, overhead_us=others.individual(*place)))
        for t, place in zip(program.ops, _places(program), strict=True)
    ]
    return replace(program, ops=ops)
