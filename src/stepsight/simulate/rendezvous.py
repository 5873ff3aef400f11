"""When things happened, and where lanes meet: a collective moves data once every rank of its set is there."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.program.job import Group
from stepsight.simulate.lowering import Lane, Meeting


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where one lane stands: the host's clock and each stream's, ``(configurations, ranks)``."""

    host_us: FloatArray
    stream_us: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """When things happened on one lane: ``(marks or launches, configurations, ranks)``.

    ``begin_us`` is when a collective's last rank arrived; for a kernel it equals ``start_us``.
    """

    mark_us: FloatArray
    start_us: FloatArray
    begin_us: FloatArray
    end_us: FloatArray


@dataclass(frozen=True, slots=True)
class Walk:
    """When each rank finished, (configurations, ranks); where each lane's clocks stand, from
    which a next step can start; where asked, when everything happened; and of lanes with a period the
    ``states`` at its boundaries (`stepsight.simulate.periods`)."""

    finish_us: FloatArray
    clocks: tuple[Clocks, ...]
    lanes: tuple[LaneTimes, ...]
    states: tuple[tuple[FloatArray, ...], ...] = ()

    @property
    def makespan_us(self) -> FloatArray:
        """One step time per configuration."""
        return np.asarray(self.finish_us.max(axis=-1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A lane stands at a meeting; its ranks' arrivals and how long they will then take."""

    meeting: Meeting
    at_us: FloatArray
    device_us: FloatArray


def sets_by_size(sets: Sequence[Group]) -> list[IntArray]:
    """A group's sets of ranks as matrices: one for each size, a row for each set."""
    sizes: dict[int, list[tuple[int, ...]]] = {}
    for group in sets:
        if group.ranks:
            sizes.setdefault(len(group.ranks), []).append(group.ranks)
    return [np.array(rows, dtype=np.int64) for rows in sizes.values()]


Steps = Generator[Arrival, tuple[FloatArray, FloatArray], Clocks]
"""A lane under way: yields arrivals, is sent (begin, end), returns where its clocks stand."""

ENDS_BY_RANK = ("all_to_all", "all_to_allv")
"""Each rank is done with its own bytes; every other collective ends for all ranks together."""


class Rendezvous:
    """Drives lanes from meeting to meeting; a lane that must wait lets the others go on.

    The order in which lanes are driven changes nothing: all that passes between them is
    the maximum of their arrivals.
    """

    def __init__(
        self, lanes: Sequence[Lane], groups: Mapping[str, tuple[Group, ...]], shape: tuple[int, int]
    ):
        self.lanes, self.groups, self.shape = lanes, groups, shape
        self.sets: dict[str, list[IntArray]] = {}
        self.gatherings: dict[tuple[str, int], _Gathering] = {}

    def alone(self, lane: Lane) -> frozenset[str]:
        """The groups in which each rank of a lane stands for the whole of its set."""
        mine = set(lane.ranks.tolist())
        return frozenset(
            name
            for name, sets in self.groups.items()
            if mine <= {g.ranks[0] for g in sets if len(g.ranks) == 1}
        )

    def run(self, steps: Sequence[Steps]) -> Generator[tuple[int, Clocks], None, None]:
        """Each lane's index with its clocks at the end, as the lanes end."""
        standing: dict[int, Arrival | None] = dict.fromkeys(range(len(steps)))
        while standing:
            moved = False
            for index in list(standing):
                while (arrival := standing[index]) is None or self._everyone_came(index, arrival):
                    moved = True
                    try:
                        lane = steps[index]
                        arrival = lane.send(self._outcome(index, arrival)) if arrival else next(lane)
                    except StopIteration as stop:
                        del standing[index]
                        yield index, stop.value
                        break
                    standing[index] = arrival
                    self._arrive(index, arrival)
            if standing and not moved:
                raise StepsightError(self._deadlock(standing))

    def _arrive(self, index: int, arrival: Arrival) -> None:
        group, ordinal = arrival.meeting.group, arrival.meeting.ordinal
        if (group, ordinal) not in self.gatherings:
            self.gatherings[group, ordinal] = _Gathering(self.shape, self._sets(group), arrival.meeting)
        self.gatherings[group, ordinal].add(self.lanes[index].ranks, arrival)

    def _everyone_came(self, index: int, arrival: Arrival) -> bool:
        gathering = self.gatherings[arrival.meeting.group, arrival.meeting.ordinal]
        return bool(gathering.done[self.lanes[index].ranks].all())

    def _outcome(self, index: int, arrival: Arrival) -> tuple[FloatArray, FloatArray]:
        """When data starts to move and when it is there, for the lane's ranks."""
        key = (arrival.meeting.group, arrival.meeting.ordinal)
        gathering, ranks = self.gatherings[key], self.lanes[index].ranks
        gathering.absent -= len(ranks)
        if gathering.absent == 0:
            del self.gatherings[key]
        return gathering.begin[:, ranks], gathering.end[:, ranks]

    def _sets(self, group: str) -> list[IntArray]:
        if group not in self.sets:
            if group not in self.groups:
                raise StepsightError(
                    f"a collective names process group {group!r}, which the job does not have"
                )
            self.sets[group] = sets_by_size(self.groups[group])
        return self.sets[group]

    def _deadlock(self, standing: Mapping[int, Arrival | None]) -> str:
        places = "; ".join(
            f"rank {self.lanes[i].ranks[0]} at {m.kind} no. {m.ordinal} of {m.group!r}"
            for i, m in ((i, a.meeting) for i, a in standing.items() if a)
        )
        return f"the ranks wait for each other for ever: {places}"


class _Gathering:
    """One collective of a group while its ranks come in."""

    def __init__(self, shape: tuple[int, int], sets: list[IntArray], meeting: Meeting):
        self.at, self.time = np.full(shape, -np.inf), np.zeros(shape)
        self.begin, self.end = np.zeros(shape), np.zeros(shape)
        self.here, self.done = np.zeros(shape[1], dtype=bool), np.zeros(shape[1], dtype=bool)
        self.sets, self.meeting = sets, meeting
        self.member = np.zeros(shape[1], dtype=bool)
        for rows in sets:
            self.member[rows] = True
        self.absent = sum(rows.size for rows in sets)

    def add(self, ranks: IntArray, arrival: Arrival) -> None:
        mine = self.meeting
        if arrival.meeting.kind != mine.kind and any(rows.shape[1] > 1 for rows in self.sets):
            raise StepsightError(
                f"collective no. {mine.ordinal} of group {mine.group!r} is {mine.kind} on one rank and "
                f"{arrival.meeting.kind} on rank {int(ranks[0])}"
            )
        outside = set(ranks.tolist()).difference(*(rows.ravel().tolist() for rows in self.sets))
        if outside:
            raise StepsightError(
                f"rank {min(outside)} calls {mine.kind} on group {mine.group!r} but is not in it"
            )
        self.at[:, ranks] = arrival.at_us
        self.time[:, ranks] = arrival.device_us
        self.here[ranks] = True
        for rows in self.sets:
            ready = rows[self.here[rows].all(axis=1) & ~self.done[rows[:, 0]]]
            if ready.size:
                self.begin[:, ready] = self.at[:, ready].max(axis=-1, keepdims=True)
                time = self.time[:, ready]
                if self.meeting.kind not in ENDS_BY_RANK:
                    time = time.max(axis=-1, keepdims=True)
                self.end[:, ready] = self.begin[:, ready] + time
                self.done[ready] = True
