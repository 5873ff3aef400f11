"""What there is to see in a run's traces, before any prediction."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray, Source
from stepsight.overheads.tables import Stat, plain_name
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.traced.predict import predict_trace
from stepsight.program.job import HOST
from stepsight.simulate.intervals import covered, union
from stepsight.simulate.timeline import RankTimes
from stepsight.trace.events import Event
from stepsight.trace.job import clean_steps, collective_waiting, rank_program, typical_step
from stepsight.trace.kernel_names import short_name
from stepsight.trace.link import is_collective_kernel
from stepsight.trace.platforms import guess_platform
from stepsight.trace.program import gathered
from stepsight.trace.run import RankTrace, TraceRun, earlier_work_until, measured_step_us, step_bounds

C = area("traces")

TOP = 15


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one rank: its host range and, where known, the GPU's period from it to the next."""

    rank: int
    name: str
    host_us: float
    gpu_period_us: float | None
    storm: bool


@dataclass(frozen=True, slots=True)
class RankView:
    """What one rank's GPU did in the run's step, in µs: the terms of `RankSummary`, as recorded.

    ``span_us`` is the step. ``busy_us`` holds exposed communication and waiting; ``communication_us`` is all
    of it, waiting and what compute covers included.
    """

    rank: int
    span_us: float
    busy_us: float
    idle_us: float
    communication_us: float
    exposed_communication_us: float
    waiting_us: float
    host_sync_us: float
    start_late_us: float


@dataclass(frozen=True, slots=True)
class TopView:
    """An operator or kernel: how often in the step and how long."""

    name: str
    count: int
    host_us: float
    gpu_us: float


@dataclass(frozen=True, slots=True)
class OverheadView:
    """T1–T5 of an operator, the profiler's cost taken out; mean and spread in µs."""

    name: str
    count: int
    t1_us: float
    t2_us: float
    t3_us: float
    t4_us: float
    t5_us: float
    spread: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that ``stepsight inspect`` shows."""

    files: tuple[str, ...]
    device: str
    world_size: int
    measured_us: float
    found_by: str
    steps: tuple[StepView, ...]
    ranks: tuple[RankView, ...]
    straggler: int | None
    operators: tuple[TopView, ...]
    kernels: tuple[TopView, ...]
    overheads: tuple[OverheadView, ...]
    critical_path_us: dict[str, float]
    coverage: dict[str, float]
    link_rate: float
    orphans: int
    warnings: tuple[str, ...]
    cpu_only: bool = False
    """No GPU work was recorded: the trace is one of a CPU, and its times are the host's."""


def inspect_run(run: TraceRun) -> Inspection:
    """Look at the typical step of a run, and at all steps' times."""
    step = typical_step(run)
    waits = collective_waiting(run, step)
    waited_us = [sum(us for _, us in of_rank) for of_rank in waits]
    path, coverage = _replayed(run)
    first = run.ranks[0]
    cpu_only = not any(r.linked.trace.gpu for r in run.ranks)
    return Inspection(
        files=tuple(r.path for r in run.ranks),
        device=run.device,
        world_size=run.world_size,
        measured_us=measured_step_us(run),
        found_by=first.steps[0].how,
        steps=tuple(v for r in run.ranks for v in _steps(r)),
        ranks=_ranks(run, step, waits),
        straggler=_straggler(run, waited_us),
        operators=_host_operators(first, step) if cpu_only else _operators(run, first, step),
        kernels=_kernels(first, step),
        overheads=_overheads(run, first),
        critical_path_us=path,
        coverage=coverage,
        link_rate=min(r.linked.link_rate for r in run.ranks),
        orphans=sum(len(r.linked.orphans) for r in run.ranks),
        warnings=run.warnings,
        cpu_only=cpu_only,
    )


def _steps(rank: RankTrace) -> list[StepView]:
    periods = [*rank.periods_us.tolist(), *[np.nan] * len(rank.steps)]
    return [
        StepView(
            rank.rank, s.name, s.end_us - s.start_us, None if np.isnan(p) else float(p), rank.is_storm(s)
        )
        for s, p in zip(rank.steps, periods, strict=False)
    ]


def _ranks(run: TraceRun, step: int, waits: list[list[tuple[Event, float]]]) -> tuple[RankView, ...]:
    """Every rank's step; ``waits`` are its collectives with what each waited inside for the others."""
    starts = [r.base_us + r.steps[step].start_us for r in run.ranks]
    step_us = measured_step_us(run)
    views = []
    for rank, waited, began in zip(run.ranks, waits, starts, strict=True):
        span = rank.steps[step]
        events = [e for x in rank.linked.launches if span.start_us <= x.call.ts < span.end_us for e in x.gpu]
        late = {(e.ts, e.name): us for e, us in waited}
        of_comm = [e for e in events if is_collective_kernel(e)]
        compute = _spans([e for e in events if not is_collective_kernel(e)])
        arrived = np.array([e.ts + late.get((e.ts, e.name), 0.0) for e in of_comm])
        moving = union(arrived, np.array([e.end for e in of_comm]))
        exposed = _length(moving) - float(covered(*moving, *compute).sum())
        busy_us = _length(_spans(events))
        waiting_us = max(busy_us - _length(compute) - exposed, 0.0)
        # Ranks that entered earlier wait less in the run's step, as it counts from when the last one has.
        less_us = min(max(_alone_us(run, rank, step, step_us) - step_us, 0.0), waiting_us)
        busy_us -= less_us
        views.append(
            RankView(
                rank=rank.rank,
                span_us=step_us,
                busy_us=min(busy_us, step_us),
                idle_us=max(step_us - busy_us, 0.0),
                communication_us=_length(_spans(of_comm)) - less_us,
                exposed_communication_us=exposed,
                waiting_us=waiting_us - less_us,
                host_sync_us=sum(c.dur for c in rank.linked.syncs if span.start_us <= c.ts < span.end_us),
                start_late_us=began - min(starts),
            )
        )
    return tuple(views)


def _alone_us(run: TraceRun, rank: RankTrace, step: int, step_us: float) -> float:
    """How long the step took on a rank; where several steps show the GPUs' period, that: hosts run ahead."""
    if run.steps > 1:
        return step_us
    start, end = step_bounds(rank, step)
    return end - max(start, earlier_work_until(rank))


def _spans(events: list[Event]) -> tuple[FloatArray, FloatArray]:
    return union(np.array([e.ts for e in events]), np.array([e.end for e in events]))


def _length(spans: tuple[FloatArray, FloatArray]) -> float:
    return float((spans[1] - spans[0]).sum())


def _straggler(run: TraceRun, waits: list[float]) -> int | None:
    """The rank that the others wait for: the one that itself waits least."""
    if len(run.ranks) < 2 or max(waits) <= 0:
        return None
    return run.ranks[int(np.argmin(waits))].rank


def _operators(run: TraceRun, rank: RankTrace, step: int) -> tuple[TopView, ...]:
    host: dict[str, float] = defaultdict(float)
    gpu: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for traced in rank_program(run, rank, step).ops:
        name = plain_name(traced.unit.name)
        count[name] += 1
        times = traced.op.overhead_us
        if times is not None:
            launches = len(traced.launches)
            host[name] += times.t2 + times.t3 + times.t4 * launches + times.t5 * max(launches - 1, 1)
        gpu[name] += sum(e.dur for x in traced.launches for e in x.gpu)
    ranked = sorted(count, key=lambda n: -(host[n] + gpu[n]))[:TOP]
    return tuple(TopView(n, count[n], host[n], gpu[n]) for n in ranked)


def _host_operators(rank: RankTrace, step: int) -> tuple[TopView, ...]:
    """The operators of a step by the host time that is their own, without what others inside them take."""
    span, ops = rank.steps[step], rank.linked.ops
    own: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for i, op in enumerate(ops):
        if span.start_us <= op.ts < span.end_us:
            inside = sum(ops[child].dur for child in rank.linked.children(i))
            own[op.name] += max(op.dur - inside, 0.0)
            count[op.name] += 1
    return tuple(TopView(n, count[n], own[n], 0.0) for n in sorted(own, key=lambda n: -own[n])[:TOP])


def _kernels(rank: RankTrace, step: int) -> tuple[TopView, ...]:
    span = rank.steps[step]
    time: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for launch in rank.linked.launches:
        if span.start_us <= launch.call.ts < span.end_us:
            for event in launch.gpu:
                time[short_name(event.name)] += event.dur
                count[short_name(event.name)] += 1
    return tuple(TopView(n, count[n], 0.0, t) for n, t in sorted(time.items(), key=lambda i: -i[1])[:TOP])


def _overheads(run: TraceRun, rank: RankTrace) -> tuple[OverheadView, ...]:
    samples = gathered(rank_program(run, rank, s) for s in clean_steps(run))
    counts = Counter(sample.name for sample in samples.samples)
    table = samples.overheads(run.device, "")

    def mean(stat: Stat | None) -> float:
        return stat.mean if stat else 0.0

    return tuple(
        OverheadView(
            n, c, mean(o.t1), mean(o.t2), mean(o.t3), mean(o.t4), mean(o.t5 or o.whole), table.spread(n)
        )
        for n, c in counts.most_common(TOP)
        if (o := table.ops[n]) is not None
    )


def _replayed(run: TraceRun) -> tuple[dict[str, float], dict[str, float]]:
    """Critical path by part from the replayed step, and which models would time the kernels."""
    platform = _platform(run)
    if platform is None:
        return {}, {}
    replay = predict_trace(run, platform, replay=True)
    latest = min(replay.ranks, key=lambda r: r.rank_wait_us).rank
    return critical_path(replay.timeline.rank(latest)), _coverage(run, platform)


def _platform(run: TraceRun) -> Platform | None:
    try:
        return load_platform(guess_platform(run))
    except InputError:
        return None


def _coverage(run: TraceRun, platform: Platform) -> dict[str, float]:
    """Share of the measured kernel time by the source that a prediction would use."""
    ops = rank_program(run, run.ranks[0], typical_step(run)).ops
    launches = [pair for t in ops for pair in zip(t.op.kernels, t.seen, strict=False)]
    if not launches:
        return {}
    estimates = platform.kernels.estimate([kernel for kernel, _ in launches])
    total: dict[str, float] = defaultdict(float)
    for (_, seen), source in zip(launches, estimates.source, strict=True):
        total[Source(int(source)).label] += seen.measured_us or 0.0
    whole = sum(total.values()) or 1.0
    return {name: value / whole for name, value in sorted(total.items(), key=lambda i: -i[1])}


HOST_PART = "host"
WAITING = "waiting for other ranks"


def critical_path(times: RankTimes) -> dict[str, float]:
    """The chain that leads from the step's start to its end, each part of which held up the next: µs by
    category, longest first."""
    walker = _Walker(times)
    launch = int(np.argmax(times.end_us)) if len(times.end_us) else None
    at = times.window_us[1]
    if launch is None or times.end_us[launch] < at - C.TOUCH_US:
        launch = walker.host_until(at)
    for _ in range(4 * len(times.end_us) + 4):
        if launch is None:
            break
        launch = walker.device(launch)
    return dict(sorted(walker.path.items(), key=lambda part: -part[1]))


class _Walker:
    def __init__(self, times: RankTimes) -> None:
        self.times = times
        self.path: dict[str, float] = defaultdict(float)
        self.tape = times.lane.lane.tape
        self.category = times.lane.category
        self.last_of_op: dict[int, int] = {}
        self.before: dict[int, int | None] = {}
        last_on: dict[int, int] = {}
        for launch in range(self.tape.launches):
            self.last_of_op[int(self.tape.launch_op[launch])] = launch
            stream = int(self.tape.launch_stream[launch])
            self.before[launch] = last_on.get(stream)
            last_on[stream] = launch
        self.begin = times.window_us[0]

    def device(self, launch: int) -> int | None:
        """Add a launch; return the launch that held it up, or walk the host back to one."""
        t = self.times
        op = int(self.tape.launch_op[launch])
        start, begin, end = (float(a[launch]) for a in (t.start_us, t.begin_us, t.end_us))
        self.path[self.category[launch]] += end - max(begin, self.begin)
        if begin > start + C.TOUCH_US:
            self.path[WAITING] += begin - max(start, self.begin)
        if start <= self.begin:
            return None
        earlier = [self.before[launch], *(self.last_of_op.get(w.on) for w in t.program.ops[op].waits
                                          if isinstance(w.on, int) and w.waiter != HOST)]  # fmt: skip
        holding = [e for e in earlier if e is not None and start - t.end_us[e] <= C.TOUCH_US + 2.0]
        if holding:
            return max(holding, key=lambda e: float(t.end_us[e]))
        return self.host_until(start, op)

    def host_until(self, at: float, op: int | None = None) -> int | None:
        """The host's stretch that ends at a moment, back to where it last waited for the device."""
        ops = self.times.program.ops
        last = op if op is not None else len(ops) - 1
        for i in range(last, -1, -1):
            awaited = [
                self.last_of_op.get(w.on) for w in ops[i].waits if w.waiter == HOST and isinstance(w.on, int)
            ]
            if ops[i].blocks_host and i != op:
                awaited.append(self.last_of_op.get(i))
            for launch in awaited:
                if launch is None:
                    continue
                end = float(self.times.end_us[launch])
                if self.times.op_start_us[i] <= end <= at:
                    self.path[HOST_PART] += at - end
                    return launch
        self.path[HOST_PART] += at - self.begin
        return None
