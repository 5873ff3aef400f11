"""What the simulation produced: when every operator, kernel and wait began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray, Source
from stepsight.platform.load import Platform
from stepsight.program.job import Job, RankProgram
from stepsight.program.observation import Observations
from stepsight.simulate.contention import settle
from stepsight.simulate.engine import Priced, clocks_at, walk
from stepsight.simulate.periods import evenly, same_advance
from stepsight.simulate.price import COMMUNICATION, PricedJob, PricedLane, price
from stepsight.simulate.rendezvous import Clocks, LaneTimes, Walk

COPY = "copy"
"""The category of copies, which take no multiprocessor."""
STEADY_STEPS = 3
"""Steps walked back to back: the host runs ahead of the GPU, so the first one is not typical."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The stretch of a rank's step that ``times`` more like it follow; its timeline leaves them blank."""

    begin_us: float
    end_us: float
    times: int


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's step: per launch and per operator, in µs on the job's clock.

    ``number``: the rank of the real job that it shows.
    """

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
    repeated: Repeated | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of all ranks.

    The step lasts from ``begin_us`` to ``end_us`` of each rank: from where the previous step
    ended there. ``step_us`` is the job's step time. ``even`` says that all clocks advanced evenly where
    blocks of a period are left out, so that the continuation is exact.
    """

    priced: PricedJob
    stretched: tuple[Priced, ...]
    times: tuple[LaneTimes, ...]
    begin_us: FloatArray
    end_us: FloatArray
    step_us: float
    states: tuple[tuple[FloatArray, ...], ...] = ()
    even: bool = True

    @property
    def ranks(self) -> int:
        return self.priced.job.ranks

    @property
    def micro_batches_left_out(self) -> int:
        """Micro-batches of blocks that repeat the one before and are not drawn; all figures hold them."""
        periods = [p.period for p in self.priced.job.programs if p.period]
        return max((p.skipped * p.micro_batches for p in periods), default=0)

    def rank(self, rank: int) -> RankTimes:
        """Everything that one rank did."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"no rank {rank}; the job has {self.ranks}")
        identical = self.priced.fold.of_rank[rank]
        for number, (lane, stretched, times) in enumerate(
            zip(self.priced.lanes, self.stretched, self.times, strict=True)
        ):
            found = np.flatnonzero(lane.lane.ranks == identical)
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
                    self._repeated(number, r, program), self.priced.job.number(rank),
                )  # fmt: skip
        raise IndexError(f"rank {rank} is in no lane")

    def _repeated(self, lane: int, column: int, program: RankProgram) -> Repeated | None:
        """The last block of a period on the stream that computes most."""
        states = self.states[lane] if self.states else ()
        if program.period is None or not program.period.skipped or len(states) < 2:
            return None
        priced = self.priced.lanes[lane]
        computing = np.array(priced.category) != COMMUNICATION
        streams = priced.lane.tape.launch_stream[computing]
        row = 1 + int(np.bincount(streams).argmax()) if len(streams) else 0  # the host's clock is the first
        begin, end = (float(state[row, 0, column]) for state in states[-2:])
        return Repeated(begin, end, program.period.skipped)


def simulate(
    job: Job, platform: Platform, *, replay: Iterable[str] = (), steps: int = STEADY_STEPS,
    seen: Observations = (),
) -> Timeline:  # fmt: skip
    """Walk a job on a platform. ``steps=1`` gives one step from a standing start."""
    return run(price(job, platform, replay, seen=seen), platform, steps=steps)


def run(priced: PricedJob, platform: Platform, *, steps: int = STEADY_STEPS) -> Timeline:
    """Walk an already priced job, with compute and communication slowing each other."""
    job = priced.fold.job
    lanes = [p.lane for p in priced.lanes]
    starts = np.array(job.start_us) if job.start_us else np.zeros(job.ranks)
    clocks: Sequence[Clocks] = [clocks_at(lane, starts) for lane in lanes]
    once = partial(_walk, priced, platform)
    first, stretched = settle(
        lanes, [p.times for p in priced.lanes], platform.spec.contention,
        lambda times: once(times, clocks, keep=True), [_computing(p) for p in priced.lanes],
    )  # fmt: skip
    begin, result = starts, first
    before: Sequence[Clocks] = clocks
    for _ in range(steps - 1):
        if same_advance(before, result.clocks):
            break
        begin, before = result.finish_us[0], result.clocks
        result = once(stretched, result.clocks, keep=True)
    end = result.finish_us[0]
    # Ranks may enter one after the other: the step counts from when the last one has (steps=1),
    # and in a steady state from the end of one step to the end of the next.
    step_us = float(end.max() - begin.max())
    of_rank = priced.fold.of_rank
    return Timeline(
        priced, stretched, result.lanes, begin[of_rank], end[of_rank], step_us,
        result.states, bool(evenly(result.states)[0]),
    )  # fmt: skip


def _computing(priced: PricedLane) -> npt.NDArray[np.bool_]:
    """Which launches occupy the GPU's multiprocessors: copies and collectives do not.

    Times from a trace hold already what other kernels cost them.
    """
    occupying = np.array([name not in (COMMUNICATION, COPY) for name in priced.category], dtype=bool)
    return np.asarray(occupying & (priced.source != Source.TRACE).any(axis=1))


def _walk(
    priced: PricedJob, platform: Platform, times: Sequence[Priced], clocks: Sequence[Clocks], *, keep: bool
) -> Walk:
    synchronous = platform.spec.host.synchronous
    configurations = max(t.device_us.shape[1] for t in times)
    return walk(
        [p.lane for p in priced.lanes], times, priced.fold.job.groups, start=clocks, keep=keep,
        launch_us=platform.spec.gpu.launch_us, gap_us=platform.spec.gpu.kernel_gap_us,
        synchronous=synchronous, configurations=configurations,
    )  # fmt: skip


def step_times(
    priced: PricedJob, platform: Platform, times: Sequence[Priced], *, steps: int = STEADY_STEPS
) -> FloatArray:
    """Only the step time, for every configuration that ``times`` holds on its second axis."""
    configurations = max(t.device_us.shape[1] for t in times)
    job = priced.fold.job
    starts = np.array(job.start_us) if job.start_us else np.zeros(job.ranks)
    clocks: Sequence[Clocks] = [clocks_at(p.lane, starts, configurations) for p in priced.lanes]
    before = np.full(configurations, starts.max())
    after = before
    for _ in range(steps):
        result = _walk(priced, platform, times, clocks, keep=False)
        steady = same_advance(clocks, result.clocks)
        before, after, clocks = after, result.makespan_us, result.clocks
        if steady:
            break
    return np.asarray(after - before)
