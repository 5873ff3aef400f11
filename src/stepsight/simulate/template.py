"""A step with open slots: launches whose times differ from configuration to configuration.

The job is priced once, as any job is. Launches in a slot take the times that a caller fills in, for
thousands of configurations and all ranks in one walk. What else ran alongside a slot's launch in the job
slows the filled-in times, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform
from stepsight.program.job import Job
from stepsight.simulate.engine import Priced
from stepsight.simulate.price import PricedJob, PricedLane, price
from stepsight.simulate.timeline import run, step_times

END = "end"
"""The slot that every template has: the last launch of the step."""
BATCHED_CELLS = 4_000_000
"""Launches × configurations × ranks walked at once at most: keeps the walk inside the caches."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The launch at ``position`` of an operator; -1 is its last. ``op`` None: the job has none."""

    op: int | None
    position: int = -1


@dataclass(frozen=True, slots=True)
class _OpenLane:
    """A lane with its slots' launches, and by launch how long it takes alone and how much longer next to
    others."""

    priced: PricedLane
    launch_of: Mapping[str, int]
    alone_us: FloatArray
    longer_us: FloatArray

    def slowed(self, launch: int, times: FloatArray) -> FloatArray:
        """A launch's times slowed by what ran alongside it in the job.

        At most by as many µs (the overlap is with fixed work, not longer for a longer launch),
        and at most by the same ratio (a shorter one overlaps less).
        """
        alone, longer = self.alone_us[launch], self.longer_us[launch]
        return np.asarray(times + np.minimum(longer, times * (longer / alone if alone > 0 else 0.0)))


class StepTemplate:
    """Prices configurations of one job that differ only in the times of its slots."""

    def __init__(self, job: Job, platform: Platform, slots: Mapping[str, Slot]) -> None:
        self.job, self.platform = job, platform
        priced = price(job, platform, fold_identical=False)
        steady = run(priced, platform).stretched
        self._lanes = [
            self._opened(lane, times, slots) for lane, times in zip(priced.lanes, steady, strict=True)
        ]
        self._priced = PricedJob(job, tuple(lane.priced for lane in self._lanes), {}, priced.fold)
        launches = sum(lane.priced.lane.tape.launches for lane in self._lanes)
        self.batch = max(1, BATCHED_CELLS // (launches * job.ranks))
        """Configurations that are best asked for at once."""

    def has(self, slot: str) -> bool:
        """Whether any rank's program has a launch there."""
        return any(slot in lane.launch_of for lane in self._lanes)

    def step_us(
        self, times_us: Mapping[str, FloatArray], added_us: Mapping[str, FloatArray] | None = None
    ) -> FloatArray:
        """The step of every configuration: ``times_us`` replace a slot's times, (configurations,
        ranks); ``added_us`` come on top of the job's own, (configurations,)."""
        count = len(next(iter(times_us.values())))
        filled = []
        for lane in self._lanes:
            ranks = lane.priced.lane.ranks
            base = lane.priced.times.device_us
            device = np.repeat(np.broadcast_to(base, (len(base), 1, len(ranks))), count, axis=1)
            for slot, times in times_us.items():
                if slot in lane.launch_of:
                    launch = lane.launch_of[slot]
                    device[launch] = lane.slowed(launch, times[:, ranks])
            for slot, added in (added_us or {}).items():
                if slot in lane.launch_of:
                    device[lane.launch_of[slot]] += added[:, None]
            filled.append(Priced(lane.priced.times.host_us, device))
        return step_times(self._priced, self.platform, filled)

    def _opened(self, lane: PricedLane, steady: Priced, slots: Mapping[str, Slot]) -> _OpenLane:
        tape = lane.lane.tape
        found = {END: int(tape.launches - 1)}
        for name, slot in slots.items():
            launches = [] if slot.op is None else np.flatnonzero(tape.launch_op == slot.op).tolist()
            if -len(launches) <= slot.position < len(launches):
                found[name] = launches[slot.position]
        # No rank is special: what overlaps in the job overlaps in the same way on all of them.
        identical = Priced(steady.host_us, steady.device_us.mean(axis=-1, keepdims=True))
        alone_us = lane.times.device_us.mean(axis=(1, 2))
        longer_us = np.maximum(0.0, steady.device_us.mean(axis=(1, 2)) - alone_us)
        return _OpenLane(replace(lane, times=identical), found, alone_us, longer_us)
