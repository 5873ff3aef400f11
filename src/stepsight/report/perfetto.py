"""The predicted step as a Chrome trace that Perfetto opens.

One process a rank; in it a track for the step, one for the host thread and one a stream.
Arrows lead from each launch to its kernel, and at each collective from the rank that came
last to those that waited for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import numpy as np

from stepsight.estimate import FloatArray, Source
from stepsight.prediction.answer import Prediction
from stepsight.program.job import Collective, Group, Kernel, Op
from stepsight.report.ranks import RankSet, identical_ranks, most_telling
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.timeline import RankTimes, Timeline

STEP_TRACK, HOST_TRACK, FIRST_STREAM_TRACK = 1, 2, 3
"""Track numbers inside a rank. None is 0: Perfetto keeps thread 0 for a kernel's idle task."""
WAITING, TRANSFER = "waiting", "transfer"
"""Categories of the two halves of a collective at which a rank waited for others."""
MOST_RANKS = 64
MOST_LAUNCHES = 100_000
"""Bounds the file (about 600 bytes per launch) to what a browser opens within seconds."""

REPEATED = "micro-batches that repeat those before are not drawn"

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One rank as it is drawn, and how many others did just the same."""

    times: RankTimes
    launches: Launches
    also: int

    @property
    def number(self) -> int:
        """The rank of the real job that is drawn."""
        return self.times.number

    def track(self, launch: int) -> int:
        return FIRST_STREAM_TRACK + int(self.times.lane.lane.tape.launch_stream[launch])


@dataclass(frozen=True, slots=True)
class _Clock:
    """Times on the job's clock as whole nanoseconds after the first thing drawn, in µs.

    Both ends of a slice are rounded, never its length, so that neighbours cannot overlap.
    """

    origin_us: float

    def at(self, us: float) -> float:
        return round((float(us) - self.origin_us) * 1e3) / 1e3

    def slice(self, name: str, category: str, place: tuple[int, int], start: float, end: float) -> Event:
        ts = round((float(start) - self.origin_us) * 1e3)
        dur = max(round((float(end) - self.origin_us) * 1e3) - ts, 0)
        return {
            "ph": "X", "name": name, "cat": category, "pid": place[0], "tid": place[1],
            "ts": ts / 1e3, "dur": dur / 1e3,
        }  # fmt: skip


def chrome_trace(prediction: Prediction, ranks: Sequence[int] | None = None) -> bytes:
    """The whole trace as JSON bytes (times in µs from the first thing that happens).

    Without ``ranks`` it draws as many as a browser opens easily: all of a small job, and of
    a large one those that differ.
    """
    timeline, skipped = prediction.timeline, prediction.timeline.micro_batches_left_out
    drawn = [_drawn(timeline, a) for a in _chosen(prediction, ranks)]
    clock = _Clock(min(_first(d.times) for d in drawn))
    flows = count(1)  # Perfetto takes only whole numbers for the two ends of an arrow.
    events: list[Event] = []
    for one in drawn:
        events += _names(one)
        events.append(clock.slice("step", "step", (one.number, STEP_TRACK), *one.times.window_us))
        events += _left_out(one, clock)
        events += _host(one, clock)
        events += _device(one, clock, flows)
    events += _meetings(drawn, timeline.priced.job.groups, clock, flows)
    return msgspec.json.encode(
        {
            "otherData": {
                **({"left_out": f"{skipped:,} {REPEATED}"} if skipped else {}),
                "generator": "stepsight",
                "workload": prediction.workload,
                "platform": prediction.platform,
                "step_time_us": float(prediction.step_time_us),
                "ranks": len(prediction.ranks),
                "ranks_drawn": len(drawn),
            },
            "displayTimeUnit": "ms",
            "traceEvents": events,
        }
    )


def _chosen(prediction: Prediction, ranks: Sequence[int] | None) -> list[RankSet]:
    if ranks is not None:
        return [RankSet((rank,)) for rank in ranks]
    timeline = prediction.timeline
    longest = max(lane.lane.tape.launches for lane in timeline.priced.lanes)
    most = max(1, min(MOST_RANKS, MOST_LAUNCHES // max(longest, 1)))
    if timeline.ranks <= most:
        return [RankSet((rank,)) for rank in range(timeline.ranks)]
    return most_telling(identical_ranks(timeline), prediction.ranks, most)


def _drawn(timeline: Timeline, chosen: RankSet) -> _Drawn:
    times = timeline.rank(chosen.first)
    return _Drawn(times, launches(timeline, times), len(chosen.ranks) - 1)


def _first(times: RankTimes) -> float:
    """When this rank first does anything: its host may run ahead of the step's own window."""
    return float(min(np.min(a, initial=times.window_us[0]) for a in (times.op_start_us, times.start_us)))


def _names(one: _Drawn) -> Iterator[Event]:
    more = f" ({one.also:,} more identical)" if one.also else ""
    yield _meta("process_name", one.number, STEP_TRACK, {"name": f"rank {one.number}{more}"})
    yield _meta("process_sort_index", one.number, STEP_TRACK, {"sort_index": one.number})
    streams = (f"stream {name}" for name in one.times.lane.lane.tape.streams)
    for track, name in enumerate(("step", "host", *streams), start=STEP_TRACK):
        yield _meta("thread_name", one.number, track, {"name": name})
        yield _meta("thread_sort_index", one.number, track, {"sort_index": track})


def _meta(kind: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _left_out(one: _Drawn, clock: _Clock) -> Iterator[Event]:
    """Repetitions that the timeline leaves blank."""
    if (once := one.times.repeated) is not None:
        name = f"{once.times:,} more like the one before, not drawn"
        end_us = once.end_us + once.times * (once.end_us - once.begin_us)
        yield clock.slice(name, "step", (one.number, STEP_TRACK), once.end_us, end_us)


def _host(one: _Drawn, clock: _Clock) -> Iterator[Event]:
    times = one.times
    for op, start, end in zip(times.program.ops, times.op_start_us, times.op_end_us, strict=True):
        event = clock.slice(op.name, "cpu_op", (one.number, HOST_TRACK), start, end)
        shapes = ", ".join("×".join(map(str, shape)) for shape in op.shapes)
        details = {"phase": op.phase, "label": op.label, "shapes": shapes}
        yield {**event, "args": {name: text for name, text in details.items() if text}}


def _device(one: _Drawn, clock: _Clock, flows: Iterator[int]) -> Iterator[Event]:
    times = one.times
    made = one.launches
    for k, (op, item) in enumerate(zip(made.ops, made.items, strict=True)):
        place = (one.number, one.track(k))
        event = clock.slice(item.label, times.lane.category[k], place, times.start_us[k], times.end_us[k])
        yield {**event, "args": {**_describe(item), "op": op.name, "source": made.sources[k].label}}
        if times.begin_us[k] > times.start_us[k]:
            # Two halves inside the collective: Perfetto turns an arrow round that leads to a
            # slice which began earlier, so the one from the last rank ends on the second half.
            yield clock.slice("waiting for ranks", WAITING, place, times.start_us[k], times.begin_us[k])
            yield clock.slice("transfer", TRANSFER, place, times.begin_us[k], times.end_us[k])
        flow = {"name": "launch", "cat": "launch", "id": next(flows), "pid": one.number}
        yield {**flow, "ph": "s", "tid": HOST_TRACK, "ts": _inside_op(one, k, clock)}
        yield {**flow, "ph": "f", "bp": "e", "tid": place[1], "ts": event["ts"]}


def _inside_op(one: _Drawn, launch: int, clock: _Clock) -> float:
    """When the host launched it. An arrow only leaves a slice that is open, so an operator's
    last nanosecond is not yet its end."""
    op = int(one.times.lane.lane.tape.launch_op[launch])
    start, end = clock.at(one.times.op_start_us[op]), clock.at(one.times.op_end_us[op])
    return max(start, min(clock.at(one.launches.launch_us[launch]), round(end - 1e-3, 3)))


def _describe(item: Kernel | Collective) -> Event:
    if isinstance(item, Collective):
        return {"collective": item.kind, "bytes": float(item.bytes), "group": item.group}
    sizes: Event = {name: float(value) for name, value in item.dims}
    if item.lookup:
        sizes["tables"] = len(item.lookup.tables)
    return {"family": item.family, "dtype": item.dtype, **sizes}


def _meetings(
    drawn: Sequence[_Drawn], groups: Mapping[str, tuple[Group, ...]], clock: _Clock, flows: Iterator[int]
) -> Iterator[Event]:
    """Arrows at each collective from the drawn rank that came last to those that waited."""
    met: dict[tuple[str, int, int], list[tuple[_Drawn, int]]] = {}
    for one in drawn:
        called: dict[str, int] = {}
        for k, item in enumerate(one.launches.items):
            if isinstance(item, Collective):
                called[item.group] = ordinal = called.get(item.group, 0) + 1
                sets = enumerate(groups.get(item.group, ()))
                own = next((i for i, group in sets if one.times.rank in group.ranks), -1)
                met.setdefault((item.group, own, ordinal), []).append((one, k))
    for there in met.values():
        last, at = max(there, key=lambda spot: (spot[0].times.start_us[spot[1]], -spot[0].times.rank))
        ts = clock.at(last.times.start_us[at])
        # Where the last rank is one that is not drawn, nobody drawn kept the others waiting.
        if ts < clock.at(last.times.begin_us[at]):
            continue
        for one, k in there:
            if clock.at(one.times.start_us[k]) >= ts:
                continue
            flow = {"name": "last rank", "cat": "collective", "id": next(flows)}
            yield {**flow, "ph": "s", "pid": last.number, "tid": last.track(at), "ts": ts}
            yield {**flow, "ph": "f", "bp": "e", "pid": one.number, "tid": one.track(k), "ts": ts}


@dataclass(frozen=True, slots=True)
class Launches:
    """One rank's launches in their order, next to its times (`RankTimes`).

    ``launch_us`` is when the host made them, on the job's clock.
    """

    ops: tuple[Op, ...]
    items: tuple[Kernel | Collective, ...]
    launch_us: FloatArray
    sources: tuple[Source, ...]


def launches(timeline: Timeline, times: RankTimes) -> Launches:
    """Everything a report says about a rank's launches, but for their start and end."""
    lane = times.lane.lane
    column = int((lane.ranks == timeline.priced.fold.of_rank[times.rank]).argmax())
    number = next(i for i, priced in enumerate(timeline.priced.lanes) if priced is times.lane)
    pairs = [(op, item) for op in times.program.ops for item in launches_of(op)]
    return Launches(
        tuple(op for op, _ in pairs), tuple(item for _, item in pairs),
        timeline.times[number].mark_us[lane.tape.launch_mark, 0, column],
        tuple(Source(int(source)) for source in times.lane.source[:, column]),
    )  # fmt: skip
