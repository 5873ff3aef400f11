"""From a timeline to figures: who was busy with what, for how long, and who waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray, Source
from stepsight.program.job import Collective
from stepsight.simulate.engine import LaneTimes
from stepsight.simulate.intervals import covered, union
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION, PricedLane
from stepsight.simulate.timeline import RankTimes, Timeline

EXPOSED = "exposed_communication"
WAITING = "waiting_for_ranks"
IDLE = "host_bound_idle"
ROUNDING_US = 1e-6
"""Below this a part is the rounding residue of sums, treated as zero."""
FIGURES = (
    "gpu_active_us", "compute_us", "communication_us", "exposed_communication_us", "rank_wait_us", "idle_us",
)  # fmt: skip
"""Of a rank's summary, what adds up over the parts of a step."""
MOST_UNMODELLED = 20
"""How many operators without a model are listed by name; the rest is in the shares."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's step. ``gpu_active_us`` is the union over its streams.

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


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """An operation that no measurement stands behind."""

    op: str
    kernel: str
    source: str
    time_us: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of all device time by source, and what has no fitted model, longest first.

    ``guessed_sizes`` is the share of what has sizes that a trace did not record.
    """

    share_by_source: Mapping[str, float]
    without_model: tuple[Unmodelled, ...]
    guessed_sizes: float = 0.0


def summarise(timeline: Timeline) -> tuple[tuple[RankSummary, ...], dict[str, float]]:
    """Every rank's figures, and the mean breakdown of the step by category."""
    summaries: dict[int, RankSummary] = {}
    total: dict[str, float] = {}
    timeline = replace(timeline, times=tuple(_rank_after_rank(times) for times in timeline.times))
    for ranks in _alike(timeline):
        times = timeline.rank(ranks[0])
        summary, parts = _summary(times)
        for rank in ranks:
            summaries[rank] = RankSummary(rank, *_values(summary)[1:])
        for name, us in parts.items():
            total[name] = total.get(name, 0.0) + us * len(ranks) / timeline.ranks
    return tuple(summaries[r] for r in sorted(summaries)), total


def _rank_after_rank(times: LaneTimes) -> LaneTimes:
    """The same arrays with each rank's times side by side in memory, as they are about to be read."""
    names = ("mark_us", "start_us", "begin_us", "end_us")
    laid = {name: np.ascontiguousarray(getattr(times, name).T).T for name in names}
    return replace(times, **laid)


def _values(summary: RankSummary) -> tuple[float, ...]:
    return tuple(getattr(summary, name) for name in RankSummary.__slots__)


def _alike(timeline: Timeline) -> list[list[int]]:
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


def _summary(times: RankTimes) -> tuple[RankSummary, dict[str, float]]:
    """What lies in the rank's window, and once more for every repetition of the stretch that repeats."""
    lo, hi = times.window_us
    pieces = [(1, lo, hi)]
    if (once := times.repeated) is not None:
        resumes_us = once.end_us + once.times * (once.end_us - once.begin_us)
        pieces = [(1, lo, once.end_us), (once.times, once.begin_us, once.end_us), (1, resumes_us, hi)]
    totals, parts = dict.fromkeys(FIGURES, 0.0), dict[str, float]()
    for often, begin_us, end_us in pieces:
        summary, mine = _within(times, begin_us, end_us)
        totals = {name: us + often * getattr(summary, name) for name, us in totals.items()}
        parts = {name: parts.get(name, 0.0) + often * mine.get(name, 0.0) for name in parts | mine}
    op_us = times.op_end_us - times.op_start_us
    host_us = float((op_us * times.lane.lane.tape.op_times).sum())
    summary = RankSummary(rank=times.rank, step_us=hi - lo, host_us=host_us, **totals)
    return summary, {name: us for name, us in parts.items() if us > ROUNDING_US}


def _within(times: RankTimes, lo: float, hi: float) -> tuple[RankSummary, dict[str, float]]:
    start, begin, end = (np.clip(a, lo, hi) for a in (times.start_us, times.begin_us, times.end_us))
    names = np.array(times.lane.category)
    comm = names == COMMUNICATION
    compute_busy = union(start[~comm], end[~comm])
    compute_us = _length(compute_busy)
    comm_busy = union(start[comm], end[comm])
    active_us = _length(union(start, end))
    moving = union(begin[comm], end[comm])
    exposed = min(_length(moving) - float(covered(*moving, *compute_busy).sum()), active_us - compute_us)
    waiting = max(active_us - compute_us - exposed, 0.0)
    parts = _by_category(names[~comm], (end - start)[~comm], compute_us)
    parts[EXPOSED], parts[WAITING], parts[IDLE] = exposed, waiting, hi - lo - active_us
    summary = RankSummary(
        times.rank, hi - lo, 0.0, active_us, compute_us, _length(comm_busy), exposed, waiting,
        hi - lo - active_us,
    )  # fmt: skip
    return summary, parts


def exposed_by_group(timeline: Timeline) -> tuple[dict[str, float], float]:
    """Exposed communication by process group, and waiting for other ranks; in µs, the mean over ranks."""
    found: dict[str, float] = {}
    waiting = 0.0
    for ranks in _alike(timeline):
        times = timeline.rank(ranks[0])
        summary, parts = _summary(times)
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


def coverage(timeline: Timeline) -> Coverage:
    """What the prediction rests on, weighted by device time."""
    by_source: dict[str, float] = {}
    unmodelled: dict[tuple[str, str, str], float] = {}
    guessed = 0.0
    for lane in timeline.priced.lanes:
        time = lane.times.device_us[:, 0, :] * lane.lane.tape.launch_times[:, None] * lane.weight
        for source in Source:
            us = float(time[lane.source == source].sum())
            if us:
                by_source[source.label] = by_source.get(source.label, 0.0) + us
        _collect(timeline, lane, time, unmodelled)
        guessed += _guessed_us(timeline, lane.lane.program_of_rank[0], lane.source, time)
    total = sum(by_source.values()) or 1.0
    listed = sorted(unmodelled.items(), key=lambda item: -item[1])[:MOST_UNMODELLED]
    return Coverage(
        {name: us / total for name, us in sorted(by_source.items(), key=lambda item: -item[1])},
        tuple(Unmodelled(*names, us) for names, us in listed),
        guessed / total,
    )


def _guessed_us(timeline: Timeline, program: int, source: np.ndarray, time: FloatArray) -> float:
    """Device time of what has guessed sizes, unless the trace itself gave its times."""
    items = (i for op in timeline.priced.job.programs[program].ops for i in launches_of(op))
    guessed = np.array([i.size_spread > 0 for i in items], dtype=bool)
    return float(time[guessed][source[guessed] != Source.TRACE].sum())


def _collect(
    timeline: Timeline, lane: PricedLane, time: FloatArray, unmodelled: dict[tuple[str, str, str], float]
) -> None:
    program, source, weight = lane.lane.program_of_rank[0], lane.source, lane.weight
    weak = (source == Source.ROOFLINE) | (source == Source.DEFAULT)
    if not weak.any():
        return
    items = [(op, i) for op in timeline.priced.job.programs[program].ops for i in launches_of(op)]
    for k in np.flatnonzero(weak.any(axis=1)):
        op, item = items[k]
        label = Source(int(source[k].max())).label
        name = item.label
        key = (op.name, name, label)
        mean_us = time[k][weak[k]].sum() / weight[weak[k]].sum()
        unmodelled[key] = unmodelled.get(key, 0.0) + float(mean_us)
