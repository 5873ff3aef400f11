"""Where a step goes, what each part means for the step time, and where its times come from.

What the step would be if one part took no time, or longer by its spread, are configurations of one walk: the
same program with some times scaled, on the engine's configuration axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray, Source
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Sizing
from stepsight.program.observation import ObservedJob
from stepsight.simulate.engine import Priced
from stepsight.simulate.intervals import covered, union
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION, PricedLane
from stepsight.simulate.rendezvous import LaneTimes
from stepsight.simulate.timeline import RankTimes, Timeline, step_times

C = area("traces")

EXPOSED = "exposed_communication"
WAITING = "waiting_for_ranks"
IDLE = "host_bound_idle"
ROUNDING_US = 1e-6
"""Below this a part is the rounding residue of sums, treated as zero."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The job's step on one rank. ``gpu_active_us`` is the union over its streams.

    ``exposed_communication_us`` is communication not covered by compute, from when its last rank has
    arrived; ``rank_wait_us`` the time until then; ``idle_us`` is when no stream had anything to do: the host
    had not launched it yet. Compute, exposed communication, waiting and idle add up to the step.
    """

    rank: int
    step_us: float
    host_us: float
    gpu_active_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    rank_wait_us: float
    idle_us: float


def summarise(timeline: Timeline) -> tuple[tuple[RankSummary, ...], dict[str, float]]:
    """Every rank's figures, and the mean breakdown of the step by category."""
    summaries: dict[int, RankSummary] = {}
    total: dict[str, float] = {}
    timeline = replace(timeline, times=tuple(_rank_after_rank(times) for times in timeline.times))
    for ranks in _identical(timeline):
        times = timeline.rank(ranks[0])
        summary, parts = _summary(times, timeline.step_us)
        for rank in ranks:
            summaries[rank] = replace(summary, rank=rank)
        for name, us in parts.items():
            total[name] = total.get(name, 0.0) + us * len(ranks) / timeline.ranks
    return tuple(summaries[r] for r in sorted(summaries)), total


def _rank_after_rank(times: LaneTimes) -> LaneTimes:
    """The same arrays with each rank's times side by side in memory, as they are about to be read."""
    names = ("mark_us", "start_us", "begin_us", "end_us")
    laid = {name: np.ascontiguousarray(getattr(times, name).T).T for name in names}
    return replace(times, **laid)


def _identical(timeline: Timeline) -> list[list[int]]:
    """Ranks that did exactly the same at the same time, so that one speaks for all."""
    found = []
    fold = timeline.priced.fold
    for lane, times in zip(timeline.priced.lanes, timeline.times, strict=True):
        members = [fold.members(chosen) for chosen in lane.lane.ranks.tolist()]
        first = [ranks[0] for ranks in members]
        same_window = np.ptp(timeline.begin_us[first]) == 0 == np.ptp(timeline.end_us[first])
        if same_window and (times.end_us == times.end_us[..., :1]).all():
            found.append([rank for ranks in members for rank in ranks])
        else:
            found.extend(members)
    return found


def _summary(times: RankTimes, step_us: float) -> tuple[RankSummary, dict[str, float]]:
    """What lies in the rank's window, and once more for every repetition of the stretch that repeats.

    Ranks may enter one after the other, where the step counts from when the last one has: by what a rank
    entered earlier it waits and idles less, by what it ended earlier it idles more.
    """
    lo, hi = times.window_us
    pieces = [(1, lo, hi)]
    if (once := times.repeated) is not None:
        resumes_us = once.end_us + once.times * (once.end_us - once.begin_us)
        pieces = [(1, lo, once.end_us), (once.times, once.begin_us, once.end_us), (1, resumes_us, hi)]
    figures: dict[str, float] = {}
    parts: dict[str, float] = {}
    for often, begin_us, end_us in pieces:
        for total, mine in zip((figures, parts), _within(times, begin_us, end_us), strict=True):
            total |= {name: total.get(name, 0.0) + often * us for name, us in mine.items()}
    op_us = times.op_end_us - times.op_start_us
    host_us = float((op_us * times.lane.lane.tape.op_times).sum())
    _fit(figures, parts, step_us)
    summary = RankSummary(rank=times.rank, step_us=step_us, host_us=host_us, **figures)
    return summary, {name: us for name, us in parts.items() if us > ROUNDING_US}


def _fit(figures: dict[str, float], parts: dict[str, float], step_us: float) -> None:
    """Make a rank's parts add up to the job's step: less waiting, then less idle time; or more idle time."""
    longer_us = sum(parts.values()) - step_us
    waited = min(max(longer_us, 0.0), parts[WAITING])
    idled = min(longer_us - waited, parts[IDLE])
    parts[WAITING] -= waited
    parts[IDLE] -= idled
    figures["idle_us"] -= idled
    for name in ("rank_wait_us", "communication_us", "gpu_active_us"):
        figures[name] -= waited
    if longer_us - waited - idled > ROUNDING_US:  # a rank that is busy for longer than the step
        for each in (figures, parts):
            each |= {name: us * step_us / (longer_us - waited - idled + step_us) for name, us in each.items()}


def _within(times: RankTimes, lo: float, hi: float) -> tuple[dict[str, float], dict[str, float]]:
    """Between two moments: the figures of a rank's summary that add up, and what the device did."""
    start, begin, end = (np.clip(a, lo, hi) for a in (times.start_us, times.begin_us, times.end_us))
    names = np.array(times.lane.category)
    comm = names == COMMUNICATION
    compute_busy, moving = union(start[~comm], end[~comm]), union(begin[comm], end[comm])
    compute_us, active_us = _length(compute_busy), _length(union(start, end))
    exposed = min(_length(moving) - float(covered(*moving, *compute_busy).sum()), active_us - compute_us)
    waiting, idle = max(active_us - compute_us - exposed, 0.0), hi - lo - active_us
    figures = {
        "gpu_active_us": active_us, "compute_us": compute_us,
        "communication_us": _length(union(start[comm], end[comm])), "exposed_communication_us": exposed,
        "rank_wait_us": waiting, "idle_us": idle,
    }  # fmt: skip
    parts = _by_category(names[~comm], (end - start)[~comm], compute_us)
    return figures, parts | {EXPOSED: exposed, WAITING: waiting, IDLE: idle}


def exposed_by_group(timeline: Timeline) -> tuple[dict[str, float], float]:
    """Exposed communication by process group, and waiting for other ranks; in µs, the mean over ranks."""
    found: dict[str, float] = {}
    waiting = 0.0
    for ranks in _identical(timeline):
        times = timeline.rank(ranks[0])
        summary, parts = _summary(times, timeline.step_us)
        share = len(ranks) / timeline.ranks
        waiting += share * summary.rank_wait_us
        mine = _uncovered_by_group(times)
        total = sum(mine.values()) or 1.0
        for group, us in mine.items():
            found[group] = found.get(group, 0.0) + share * parts.get(EXPOSED, 0.0) * us / total
    return found, waiting


def _uncovered_by_group(times: RankTimes) -> dict[str, float]:
    """Of each group's collectives, what no compute covers; groups that overlap count both."""
    comm = np.array(times.lane.category) == COMMUNICATION
    lo, hi = times.window_us
    start, begin, end = (np.clip(a, lo, hi) for a in (times.start_us, times.begin_us, times.end_us))
    busy = union(start[~comm], end[~comm])
    left = (end - begin)[comm] - covered(begin[comm], end[comm], *busy)
    left = np.maximum(left, 0.0) * times.lane.lane.tape.launch_times[comm]
    items = [i for op in times.program.ops for i in launches_of(op)]
    found: dict[str, float] = {}
    for k, us in zip(np.flatnonzero(comm).tolist(), left.tolist(), strict=True):
        item = items[k]
        if us > ROUNDING_US and isinstance(item, Collective):
            found[item.group] = found.get(item.group, 0.0) + us
    return found


def _length(intervals: tuple[FloatArray, FloatArray]) -> float:
    return float((intervals[1] - intervals[0]).sum())


def _by_category(names: np.ndarray, busy: FloatArray, union_us: float) -> dict[str, float]:
    """Compute by category, scaled to the union where streams ran side by side."""
    total = float(busy.sum())
    scale = union_us / total if total > 0 else 0.0
    return {str(name): float(busy[names == name].sum()) * scale for name in np.unique(names)}


def naive_us(timeline: Timeline) -> float:
    """The baseline without any of this: the busiest stream's sum of kernels."""
    busiest = 0.0
    for lane in timeline.priced.lanes:
        device = lane.times.device_us[:, 0, :] * lane.lane.tape.launch_times[:, None]
        for stream in range(len(lane.lane.tape.streams)):
            on_stream = device[lane.lane.tape.launch_stream == stream].sum(axis=0)
            busiest = max(busiest, float(on_stream.max(initial=0.0)))
    return busiest


HOST = "host"
HOST_SPREAD = area("prediction").number("HOST_SPREAD")
MOST_NUMBERS = 4_000_000
"""Launch times held at once: bounds memory when many ranks have their own times, and arrays of 32 MB are
reused where larger ones are handed back to the system each time."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one category means for the step.

    ``if_free_us`` is the step time if the category took no time at all; ``step_spread`` how
    far, as a fraction, the step moves when the category is slower by its spread.
    """

    category: str
    if_free_us: float
    step_spread: float


def sensitivities(
    timeline: Timeline, platform: Platform, *, steps: int, host_spread: float = HOST_SPREAD
) -> tuple[Sensitivity, ...]:
    """One entry per category and one for the host, those that matter most first."""
    lanes = timeline.priced.lanes
    names = [*sorted({name for lane in lanes for name in lane.category}), HOST]
    if any(times.late_us is not None for times in timeline.stretched):
        names.append(WAITING)
    questions = [(name, kind) for name in names for kind in ("free", "slow")]
    size = sum(s.device_us.shape[0] * s.device_us.shape[2] for s in timeline.stretched) or 1
    at_once = max(1, min(len(questions) + 1, MOST_NUMBERS // size))
    answers: list[float] = []
    asked = [("", ""), *questions]
    for lo in range(0, len(asked), at_once):
        times = [_scaled(timeline, i, asked[lo : lo + at_once], host_spread) for i in range(len(lanes))]
        answers += step_times(timeline.priced, platform, times, steps=steps).tolist()
    base = answers[0]
    found = [
        Sensitivity(name, answers[1 + 2 * i], abs(answers[2 + 2 * i] / base - 1) if base > 0 else 0.0)
        for i, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda s: s.if_free_us))


def _scaled(timeline: Timeline, lane: int, questions: list[tuple[str, str]], host_spread: float) -> Priced:
    """The lane's times with one configuration a question."""
    priced, stretched = timeline.priced.lanes[lane], timeline.stretched[lane]
    names = np.array(priced.category)
    slow = np.exp(np.average(priced.spread, axis=1, weights=priced.weight))
    device: FloatArray = np.repeat(stretched.device_us, len(questions), axis=1)
    host: FloatArray = np.repeat(stretched.host_us, len(questions), axis=1)
    late = None if stretched.late_us is None else np.repeat(stretched.late_us, len(questions), axis=1)
    for c, (name, kind) in enumerate(questions):
        if name == HOST:
            host[:, c] *= 0.0 if kind == "free" else np.exp(host_spread)
        elif name == WAITING and late is not None:
            late[:, c] *= 0.0 if kind == "free" else np.exp(C.LATE_SPREAD)
        elif name:
            chosen = names == name
            if kind == "free":
                device[chosen, c] = 0.0
            else:  # what others hold a launch up for does not grow with it
                alone = np.broadcast_to(priced.times.device_us, stretched.device_us.shape)[chosen, 0]
                device[chosen, c] += alone * (slow[chosen, None] - 1)
    return Priced(host, device, late)


MOST_UNMODELLED = 20
"""How many operators without a model are listed by name; the rest is in the shares."""


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """An operation without a fitted model."""

    op: str
    kernel: str
    source: str
    time_us: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of all device time by source, and what has no fitted model, longest first.

    Those of kernels and those of communication add up to ``share_by_source``.
    """

    kernels_by_source: Mapping[str, float]
    communication_by_source: Mapping[str, float]
    without_model: tuple[Unmodelled, ...]
    share_by_source: Mapping[str, float]


def coverage(timeline: Timeline) -> Coverage:
    """Where the times come from, weighted by device time."""
    kernels: dict[str, float] = {}
    communication: dict[str, float] = {}
    unmodelled: dict[tuple[str, str, str], float] = {}
    for lane in timeline.priced.lanes:
        time = lane.times.device_us[:, 0, :] * lane.lane.tape.launch_times[:, None] * lane.weight
        talks = np.array(lane.category) == COMMUNICATION
        for found, chosen in ((kernels, ~talks), (communication, talks)):
            for source in Source:
                us = float(time[(lane.source == source) & chosen[:, None]].sum())
                if us:
                    found[source.label] = found.get(source.label, 0.0) + us
        for names, us in _unmodelled(timeline, lane, time):
            unmodelled[names] = unmodelled.get(names, 0.0) + us
    both = {name: kernels.get(name, 0.0) + communication.get(name, 0.0) for name in kernels | communication}
    total = sum(both.values()) or 1.0
    listed = sorted(unmodelled.items(), key=lambda item: -item[1])[:MOST_UNMODELLED]
    shares = [
        {name: us / total for name, us in sorted(each.items(), key=lambda item: -item[1])}
        for each in (kernels, communication, both)
    ]
    return Coverage(shares[0], shares[1], tuple(Unmodelled(*names, us) for names, us in listed), shares[2])


def _unmodelled(
    timeline: Timeline, lane: PricedLane, time: FloatArray
) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Operator, kernel and source of every launch without a fitted model, with its mean time over ranks."""
    weak = (lane.source == Source.ROOFLINE) | (lane.source == Source.DEFAULT)
    if not weak.any():
        return
    program = timeline.priced.job.programs[lane.lane.program_of_rank[0]]
    items = [(op, item) for op in program.ops for item in launches_of(op)]
    for k in np.flatnonzero(weak.any(axis=1)):
        op, item = items[k]
        mean_us = time[k][weak[k]].sum() / lane.weight[weak[k]].sum()
        yield (op.name, item.label, Source(int(lane.source[k].max())).label), float(mean_us)


@dataclass(frozen=True, slots=True)
class TimedBy:
    """Shares of the traced GPU time by who answers for it when the models time the step.

    ``known_sizes``: recorded, or spelled out in the kernel's name. ``guessed_sizes``: counted by launch
    grids. ``trace``: nothing states its sizes, so the measured time stands (scaled on another GPU); delays on
    an idle GPU that no record explains count here.
    """

    known_sizes: float = 0.0
    guessed_sizes: float = 0.0
    trace: float = 0.0

    @classmethod
    def of(cls, job: ObservedJob) -> TimedBy:
        """The shares of a traced job by its measured times."""
        known = guessed = kept = 0.0
        for op, seen in job.ops():
            for kernel, observed in zip(op.kernels, seen, strict=False):
                time_us = observed.measured_us or 0.0
                kept += observed.late_us
                if observed.opaque:
                    kept += time_us
                elif kernel.sizing is Sizing.COUNTED:
                    guessed += time_us
                else:
                    known += time_us
            if op.collective is not None:
                if seen[-1].opaque:
                    kept += seen[-1].measured_us or 0.0
                else:
                    known += seen[-1].measured_us or 0.0
        total = known + guessed + kept
        return cls(known / total, guessed / total, kept / total) if total > 0 else cls()

    def words(self) -> str:
        """The shares in a sentence."""
        return (
            f"{100 * self.known_sizes:.0f} % of the traced GPU time is timed by models with recorded sizes,"
            f" {100 * self.guessed_sizes:.0f} % with sizes counted by launch grids,"
            f" {100 * self.trace:.0f} % by the trace's own durations"
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """What the trace measured: the step's time and the machine it was measured on."""

    step_us: float
    platform: str
    timed_by: TimedBy | None = None
