"""The walk of a few ranks: one rank per lane and one configuration, in plain floats.

The recurrence is that of `engine`; arrays of one element cost more than what they hold. A pipeline's stages
differ in structure, so that each is a lane of one rank, and a job of a language model is walked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.program.job import Group
from stepsight.simulate.lowering import HOST_CLOCK, Boundary, Join, Lane, Meeting, Stretch
from stepsight.simulate.periods import continued
from stepsight.simulate.rendezvous import ENDS_BY_RANK, Clocks, LaneTimes, Walk


@dataclass(slots=True)
class _Meeting:
    """One collective while its ranks come in: arrivals, times and kinds by rank."""

    at_us: dict[int, float] = field(default_factory=dict)
    time_us: dict[int, float] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)


class _Lane:
    """One rank under way."""

    def __init__(
        self, lane: Lane, times: tuple[FloatArray, FloatArray, FloatArray | None], start: Clocks,
        delays_us: tuple[float, float],
    ) -> None:  # fmt: skip
        tape = lane.tape
        self.tape, self.rank, self.delays_us = tape, int(lane.ranks[0]), delays_us
        self.spent = np.broadcast_to(times[0], (tape.marks, 1, 1))[:, 0, 0].tolist()
        self.device = np.broadcast_to(times[1], (tape.launches, 1, 1))[:, 0, 0].tolist()
        self.late = None if times[2] is None else times[2][:, 0, 0].tolist()
        self.mark_of = tape.launch_mark.tolist()
        self.host = float(start.host_us[0, 0])
        self.clocks = [float(clock[0, 0]) for clock in start.stream_us]
        self.ends: dict[int, float] = {}
        self.at = 0
        self.marks = [0.0] * tape.marks
        self.start, self.begin, self.end = ([0.0] * tape.launches for _ in range(3))
        self.states: list[FloatArray] = []

    def run(self, alone: frozenset[str]) -> Meeting | None:
        """Goes on to the next meeting with other ranks, or to the end."""
        instructions = self.tape.instructions
        while self.at < len(instructions):
            step = instructions[self.at]
            if isinstance(step, Stretch):
                self._stretch(step)
            elif isinstance(step, Join):
                self._join(step)
            elif isinstance(step, Boundary):
                self._boundary(step)
            else:
                self._arrive(step)
                if step.group not in alone:
                    return step
                begin = self.begin[step.launch]
                self.leave(step, begin, begin + self.device[step.launch])
                continue
            self.at += 1
        return None

    def _stretch(self, step: Stretch) -> None:
        launch_us, gap_us = self.delays_us
        now, spent, marks = self.host, self.spent, self.marks
        for mark in range(step.lo, step.hi):
            now += spent[mark]
            marks[mark] = now
        self.host = now
        awaited = self.tape.awaited
        for stream, launches in step.launches:
            clock = self.clocks[stream]
            for launch in launches.tolist():
                time = self.device[launch]
                clock = max(clock, marks[self.mark_of[launch]] + launch_us) + time + gap_us
                end = clock - gap_us
                self.end[launch] = end
                self.start[launch] = self.begin[launch] = end - time
                if launch in awaited:
                    self.ends[launch] = end
            self.clocks[stream] = clock

    def _join(self, step: Join) -> None:
        other = self.ends[step.on_launch] if step.on_launch >= 0 else self.clocks[step.on_stream]
        if step.waiter == HOST_CLOCK:
            self.host = max(self.host, other)
        else:
            self.clocks[step.waiter] = max(self.clocks[step.waiter], other)

    def _boundary(self, step: Boundary) -> None:
        state = [self.host, *self.clocks, *(self.ends[launch] for launch in step.live)]
        self.states.append(np.array(state)[:, None, None])
        if step.skipped > 0:
            state = continued(self.states, step.skipped)[:, 0, 0].tolist()
            n = 1 + len(self.clocks)
            self.host, self.clocks = state[0], state[1:n]
            self.ends.update(zip(step.live, state[n:], strict=True))

    def _arrive(self, step: Meeting) -> None:
        ready = max(self.host + self.delays_us[0], self.clocks[step.stream])
        for stream in step.after:
            ready = max(ready, self.clocks[stream])
        self.start[step.launch] = ready
        self.begin[step.launch] = ready + (0.0 if self.late is None else self.late[step.launch])

    def leave(self, step: Meeting, begin: float, end: float) -> None:
        """The collective begins and ends."""
        self.begin[step.launch], self.end[step.launch] = begin, end
        self.clocks[step.stream] = end
        if step.launch in self.tape.awaited:
            self.ends[step.launch] = end
        self.at += 1


def walk_narrow(
    lanes: Sequence[Lane], times: Sequence[tuple[FloatArray, FloatArray, FloatArray | None]],
    groups: Mapping[str, tuple[Group, ...]], start: Sequence[Clocks], alone: Sequence[frozenset[str]],
    delays_us: tuple[float, float],
) -> Walk | None:  # fmt: skip
    """All ranks together; None where they do not agree on their collectives (`engine` says how)."""
    under_way = [_Lane(*each, delays_us) for each in zip(lanes, times, start, strict=True)]
    peers = {name: {r: g.ranks for g in sets for r in g.ranks} for name, sets in groups.items()}
    met: dict[tuple[str, int, int], _Meeting] = {}
    standing: dict[int, Meeting] = {}
    lane_of = {lane.rank: i for i, lane in enumerate(under_way)}
    able = list(range(len(under_way)))[::-1]
    while able:
        i = able.pop()
        lane = under_way[i]
        step = lane.run(alone[i])
        if step is None:
            continue
        ranks = peers.get(step.group, {}).get(lane.rank)
        if ranks is None:
            return None
        meeting = met.setdefault((step.group, step.ordinal, ranks[0]), _Meeting())
        meeting.at_us[lane.rank] = lane.begin[step.launch]
        meeting.time_us[lane.rank] = lane.device[step.launch]
        meeting.kinds.add(step.kind)
        standing[i] = step
        if len(meeting.kinds) > 1:
            return None
        if len(meeting.at_us) < len(ranks):
            continue
        begin, longest = max(meeting.at_us.values()), max(meeting.time_us.values())
        for rank in ranks:
            own = standing.pop(lane_of[rank])
            took = meeting.time_us[rank] if own.kind in ENDS_BY_RANK else longest
            under_way[lane_of[rank]].leave(own, begin, begin + took)
            able.append(lane_of[rank])
    return None if standing else _gathered(under_way, len(lanes))


def _gathered(lanes: Sequence[_Lane], ranks: int) -> Walk:
    finish = np.zeros((1, ranks))
    for lane in lanes:
        finish[0, lane.rank] = max(lane.host, *lane.clocks) if lane.clocks else lane.host

    def wide(values: list[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)[:, None, None]

    return Walk(
        finish,
        tuple(Clocks(np.array([[x.host]]), tuple(np.array([[c]]) for c in x.clocks)) for x in lanes),
        tuple(LaneTimes(wide(x.marks), wide(x.start), wide(x.begin), wide(x.end)) for x in lanes),
        tuple(tuple(x.states) for x in lanes),
    )
