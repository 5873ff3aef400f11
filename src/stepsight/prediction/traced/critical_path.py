"""The critical path of a simulated step on one rank: what, end to start, held everything up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepsight.program.job import HOST
from stepsight.simulate.timeline import RankTimes
from stepsight.trace.constants import TOUCH_US

HOST_PART = "host"
WAITING = "waiting for other ranks"


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the critical path: on a stream or on the host."""

    what: str
    name: str
    start_us: float
    end_us: float

    @property
    def length_us(self) -> float:
        return self.end_us - self.start_us


def critical_path(times: RankTimes) -> list[PathSegment]:
    """Segments from the step's start to its end; each one held up the next."""
    walker = _Walker(times)
    path: list[PathSegment] = []
    launch = int(np.argmax(times.end_us)) if len(times.end_us) else None
    at = times.window_us[1]
    if launch is None or times.end_us[launch] < at - TOUCH_US:
        launch = walker.host_until(path, at)
    for _ in range(4 * len(times.end_us) + 4):
        if launch is None:
            break
        launch = walker.device(path, launch)
    return path[::-1]


def by_part(path: list[PathSegment]) -> dict[str, float]:
    """Length by category, longest first."""
    total: dict[str, float] = defaultdict(float)
    for segment in path:
        total[segment.what] += segment.length_us
    return dict(sorted(total.items(), key=lambda i: -i[1]))


class _Walker:
    def __init__(self, times: RankTimes) -> None:
        self.times = times
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

    def device(self, path: list[PathSegment], launch: int) -> int | None:
        """Add a launch; return the launch that held it up, or walk the host back to one."""
        t = self.times
        op = int(self.tape.launch_op[launch])
        start, begin, end = (float(a[launch]) for a in (t.start_us, t.begin_us, t.end_us))
        path.append(PathSegment(self.category[launch], t.program.ops[op].name, max(begin, self.begin), end))
        if begin > start + TOUCH_US:
            path.append(PathSegment(WAITING, t.program.ops[op].name, max(start, self.begin), begin))
        if start <= self.begin:
            return None
        earlier = [self.before[launch], *(self.last_of_op.get(w.on) for w in t.program.ops[op].waits
                                          if isinstance(w.on, int) and w.waiter != HOST)]  # fmt: skip
        holding = [e for e in earlier if e is not None and start - t.end_us[e] <= TOUCH_US + 2.0]
        if holding:
            return max(holding, key=lambda e: float(t.end_us[e]))
        return self.host_until(path, start, op)

    def host_until(self, path: list[PathSegment], at: float, op: int | None = None) -> int | None:
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
                    path.append(PathSegment(HOST_PART, ops[last].name, end, at))
                    return launch
        path.append(PathSegment(HOST_PART, ops[last].name if ops else "", self.begin, at))
        return None
