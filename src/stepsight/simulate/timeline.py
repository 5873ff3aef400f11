"""What the simulation produced: when every operator, kernel and wait began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray, Source
from stepsight.platform.load import Platform
from stepsight.program.job import Job, Kernel, RankProgram
from stepsight.simulate.contention import settle
from stepsight.simulate.engine import LaneTimes, Priced, Walk, clocks_at, walk
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION, PricedJob, PricedLane, price
from stepsight.simulate.rendezvous import Clocks

COPY = "copy"
"""The category of copies, which take no multiprocessor."""
STEADY_STEPS = 3
"""Steps walked back to back: the host runs ahead of the GPU, so the first one is not typical."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's step: per launch and per operator, in µs on the job's clock."""

    rank: int
    program: RankProgram
    lane: PricedLane
    start_us: FloatArray
    begin_us: FloatArray
    end_us: FloatArray
    op_start_us: FloatArray
    op_end_us: FloatArray
    device_us: FloatArray
    window_us: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of all ranks.

    The step lasts from ``begin_us`` to ``end_us`` of each rank: from where the previous step
    ended there. ``step_us`` is the job's step time. Of the ``stretched`` times, ``kept_off_us``
    (in the same shape) are waits for an embedding backward to leave the GPU.
    """

    priced: PricedJob
    stretched: tuple[Priced, ...]
    kept_off_us: tuple[FloatArray, ...]
    times: tuple[LaneTimes, ...]
    begin_us: FloatArray
    end_us: FloatArray
    step_us: float

    @property
    def ranks(self) -> int:
        return self.priced.job.ranks

    def rank(self, rank: int) -> RankTimes:
        """Everything that one rank did."""
        for lane, stretched, times in zip(self.priced.lanes, self.stretched, self.times, strict=True):
            found = np.flatnonzero(lane.lane.ranks == rank)
            if len(found):
                r, tape = int(found[0]), lane.lane.tape
                program = self.priced.job.programs[int(lane.lane.program_of_rank[r])]
                device = stretched.device_us
                return RankTimes(
                    rank, program, lane,
                    times.start_us[:, 0, r], times.begin_us[:, 0, r], times.end_us[:, 0, r],
                    times.mark_us[tape.op_start_mark, 0, r], times.mark_us[tape.op_end_mark, 0, r],
                    device[:, 0, r if device.shape[2] > 1 else 0],
                    (float(self.begin_us[rank]), float(self.end_us[rank])),
                )  # fmt: skip
        raise IndexError(f"no rank {rank}; the job has {self.ranks}")


def simulate(
    job: Job, platform: Platform, *, replay: Iterable[str] = (), steps: int = STEADY_STEPS
) -> Timeline:
    """Walk a job on a platform. ``steps=1`` gives one step from a standing start."""
    return run(price(job, platform, replay), platform, steps=steps)


def run(priced: PricedJob, platform: Platform, *, steps: int = STEADY_STEPS) -> Timeline:
    """Walk an already priced job, with compute and communication slowing each other."""
    job = priced.job
    lanes = [p.lane for p in priced.lanes]
    starts = np.array(job.start_us) if job.start_us else np.zeros(job.ranks)
    clocks: Sequence[Clocks] = [clocks_at(lane, starts) for lane in lanes]
    once = partial(_walk, priced, platform)
    first, stretched, kept = settle(
        lanes, [p.times for p in priced.lanes], platform.spec.contention,
        lambda times: once(times, clocks, keep=True), [_computing(p) for p in priced.lanes],
        [_excluding(p, job) for p in priced.lanes],
    )  # fmt: skip
    begin, result = starts, first
    for _ in range(steps - 1):
        begin = result.finish_us[0]
        result = once(stretched, result.clocks, keep=True)
    end = result.finish_us[0]
    # Ranks may enter one after the other: the step counts from when the last one has (steps=1),
    # and in a steady state from the end of one step to the end of the next.
    step_us = float(end.max() - begin.max())
    return Timeline(priced, tuple(stretched), kept, result.lanes, begin, end, step_us)


def _computing(priced: PricedLane) -> npt.NDArray[np.bool_]:
    """Which launches occupy the GPU's multiprocessors: copies and collectives do not.

    Times from a trace hold already what other kernels cost them.
    """
    occupying = np.array([name not in (COMMUNICATION, COPY) for name in priced.category], dtype=bool)
    return np.asarray(occupying & (priced.source != Source.TRACE).any(axis=1))


def _excluding(priced: PricedLane, job: Job) -> npt.NDArray[np.bool_]:
    """Which launches keep others off the multiprocessors: the backward of embeddings.

    On an A100 (production DLRM, FBGEMM) six of six kernels of another stream that were launched while one
    ran, up to 5 ms before its end, began within 0.1 ms of it. Why was not shown; no other trace has a case.
    """
    items = (i for op in job.programs[priced.programs[0]].ops for i in launches_of(op))
    return np.array([isinstance(i, Kernel) and i.family == "embedding_backward" for i in items], dtype=bool)


def _walk(
    priced: PricedJob, platform: Platform, times: Sequence[Priced], clocks: Sequence[Clocks], *, keep: bool
) -> Walk:
    synchronous = platform.spec.host.synchronous
    configurations = max(t.device_us.shape[1] for t in times)
    return walk(
        [p.lane for p in priced.lanes], times, priced.job.groups, start=clocks, keep=keep,
        launch_us=platform.spec.gpu.launch_us, gap_us=platform.spec.gpu.kernel_gap_us,
        synchronous=synchronous, configurations=configurations,
    )  # fmt: skip


def step_times(
    priced: PricedJob, platform: Platform, times: Sequence[Priced], *, steps: int = STEADY_STEPS
) -> FloatArray:
    """Only the step time, for every configuration that ``times`` holds on its second axis."""
    configurations = max(t.device_us.shape[1] for t in times)
    starts = np.array(priced.job.start_us) if priced.job.start_us else np.zeros(priced.job.ranks)
    clocks: Sequence[Clocks] = [clocks_at(p.lane, starts, configurations) for p in priced.lanes]
    before = np.full(configurations, starts.max())
    after = before
    for _ in range(steps):
        result = _walk(priced, platform, times, clocks, keep=False)
        before, after, clocks = after, result.makespan_us, result.clocks
    return np.asarray(after - before)
