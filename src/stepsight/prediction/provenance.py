"""Where a prediction's times come from: shares by source, what has no model, the trace it began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray, Source
from stepsight.program.job import Sizing
from stepsight.program.observation import ObservedJob
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import PricedLane
from stepsight.simulate.timeline import Timeline

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
    """Share of all device time by source, and what has no fitted model, longest first."""

    share_by_source: Mapping[str, float]
    without_model: tuple[Unmodelled, ...]


def coverage(timeline: Timeline) -> Coverage:
    """Where the times come from, weighted by device time."""
    by_source: dict[str, float] = {}
    unmodelled: dict[tuple[str, str, str], float] = {}
    for lane in timeline.priced.lanes:
        time = lane.times.device_us[:, 0, :] * lane.lane.tape.launch_times[:, None] * lane.weight
        for source in Source:
            us = float(time[lane.source == source].sum())
            if us:
                by_source[source.label] = by_source.get(source.label, 0.0) + us
        _collect(timeline, lane, time, unmodelled)
    total = sum(by_source.values()) or 1.0
    listed = sorted(unmodelled.items(), key=lambda item: -item[1])[:MOST_UNMODELLED]
    return Coverage(
        {name: us / total for name, us in sorted(by_source.items(), key=lambda item: -item[1])},
        tuple(Unmodelled(*names, us) for names, us in listed),
    )


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
