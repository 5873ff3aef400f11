"""The predicted step as a Chrome trace that Perfetto opens.

One process a rank, one track a stream and one for the host; arrows from each launch to
its kernel, and from the last rank to arrive at a collective to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stepsight.estimate import Source
from stepsight.prediction.answer import Prediction
from stepsight.simulate.tape import launches_of
from stepsight.simulate.timeline import RankTimes
from stepsight.workload.program import Collective, Kernel

HOST_TRACK = 0
MOST_RANKS = 64
"""Ranks drawn; a thousand alike would only make the file too large to open."""

Event = dict[str, Any]


def chrome_trace(prediction: Prediction, ranks: Sequence[int] | None = None) -> bytes:
    """The whole trace as JSON bytes (times in µs from the start of the step)."""
    chosen = list(ranks) if ranks is not None else list(range(min(prediction.timeline.ranks, MOST_RANKS)))
    times = [prediction.timeline.rank(rank) for rank in chosen]
    origin = min((t.window_us[0] for t in times), default=0.0)
    # The host runs ahead of the device, so its part of the step may begin earlier.
    origin = min([origin, *(float(t.op_start_us.min(initial=origin)) for t in times)])
    events: list[Event] = []
    for rank_times in times:
        events += _names(rank_times)
        events += _host(rank_times, origin)
        events += _device(rank_times, origin)
    events += _meetings(times, origin)
    return msgspec.json.encode(
        {
            "displayTimeUnit": "ms",
            "otherData": {
                "generator": "stepsight",
                "workload": prediction.workload,
                "platform": prediction.platform,
                "step_time_us": prediction.step_us,
                "ranks_drawn": len(chosen),
                "ranks": prediction.timeline.ranks,
            },
            "traceEvents": events,
        }
    )


def _names(times: RankTimes) -> Iterator[Event]:
    yield _meta("process_name", times.rank, HOST_TRACK, f"rank {times.rank}")
    yield {"ph": "M", "name": "process_sort_index", "pid": times.rank, "args": {"sort_index": times.rank}}
    yield _meta("thread_name", times.rank, HOST_TRACK, "host")
    for number, stream in enumerate(times.lane.lane.tape.streams):
        yield _meta("thread_name", times.rank, number + 1, f"stream {stream}")


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, category: str, pid: int, tid: int, start: float, end: float, args: Event) -> Event:
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
        "ts": round(start, 3), "dur": round(max(end - start, 0.001), 3), "args": args,
    }  # fmt: skip


def _host(times: RankTimes, origin: float) -> Iterator[Event]:
    for op, start, end in zip(times.program.ops, times.op_start_us, times.op_end_us, strict=True):
        args = {"phase": op.phase, "label": op.label}
        yield _slice(op.name, "cpu_op", times.rank, HOST_TRACK, start - origin, end - origin, args)


def _device(times: RankTimes, origin: float) -> Iterator[Event]:
    tape = times.lane.lane.tape
    items = [(op, i) for op in times.program.ops for i in launches_of(op)]
    column = int((times.lane.lane.ranks == times.rank).argmax())
    for k, (op, item) in enumerate(items):
        track = int(tape.launch_stream[k]) + 1
        start, end = times.start_us[k] - origin, times.end_us[k] - origin
        args = _describe(item)
        args |= {"op": op.name, "source": Source(int(times.lane.source[k, column])).label}
        if isinstance(item, Collective):
            args["waiting_us"] = round(float(times.begin_us[k] - times.start_us[k]), 3)
        name = item.name or (item.kind if isinstance(item, Collective) else item.family)
        yield _slice(name, times.lane.category[k], times.rank, track, start, end, args)
        flow = {"name": "launch", "cat": "launch", "id": f"{times.rank}.{k}", "pid": times.rank}
        # The op's own slice encloses its launch; its start is a point the arrow can leave from.
        yield {**flow, "ph": "s", "tid": HOST_TRACK, "ts": round(_launch_point(times, k) - origin, 3)}
        yield {**flow, "ph": "f", "bp": "e", "tid": track, "ts": round(start, 3)}


def _launch_point(times: RankTimes, launch: int) -> float:
    op = int(times.lane.lane.tape.launch_op[launch])
    return float((times.op_start_us[op] + times.op_end_us[op]) / 2)


def _describe(item: Kernel | Collective) -> Event:
    if isinstance(item, Collective):
        return {"bytes": item.bytes, "group": item.group}
    sizes: Event = dict(item.dims)
    if item.lookup:
        sizes["tables"] = len(item.lookup.tables)
    return {"family": item.family, "dtype": item.dtype, **sizes}


def _meetings(times: Sequence[RankTimes], origin: float) -> Iterator[Event]:
    """Arrows at each collective from the rank that came last to the drawn ranks that waited."""
    arrivals: dict[tuple[str, int], list[tuple[float, int, int]]] = {}
    for rank_times in times:
        tape = rank_times.lane.lane.tape
        ordinals: dict[str, int] = {}
        items = (i for op in rank_times.program.ops for i in launches_of(op))
        for k, item in enumerate(items):
            if isinstance(item, Collective):
                n = ordinals.get(item.group, 0)
                ordinals[item.group] = n + 1
                spot = (float(rank_times.start_us[k]), rank_times.rank, int(tape.launch_stream[k]) + 1)
                begin = round(float(rank_times.begin_us[k]), 6)
                arrivals.setdefault((f"{item.group}.{n}.{begin}", n), []).append(spot)
    for (name, _), spots in arrivals.items():
        last, rank, track = max(spots)
        for number, (start, other, other_track) in enumerate(sorted(spots)):
            if other == rank or start == last:
                continue
            flow = {"name": "last rank", "cat": "collective", "id": f"{name}.{number}"}
            ts = round(last - origin, 3)
            yield {**flow, "ph": "s", "pid": rank, "tid": track, "ts": ts}
            yield {**flow, "ph": "f", "bp": "e", "pid": other, "tid": other_track, "ts": ts}
