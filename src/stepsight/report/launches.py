"""What each launch of a rank is, which operator made it and when, and what its time rests on."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.estimate import FloatArray, Source
from stepsight.program.job import Collective, Kernel, Op
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.timeline import RankTimes, Timeline


@dataclass(frozen=True, slots=True)
class Launches:
    """One rank's launches in their order, beside its times (`RankTimes`).

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


def name_of(item: Kernel | Collective) -> str:
    """What a launch is called: its own name, else its kind."""
    return item.label
