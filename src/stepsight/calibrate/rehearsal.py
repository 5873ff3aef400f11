"""What lies between microbenchmarks and a step, found on rehearsal steps.

Caches that other operators have emptied, memory that all ranks share, threads of the
communication library on the rank's own core, Python between operators: each makes a kind of
work slower by about the same factor in every step. The factors are those that bring the
simulated steps of random workloads closest to their measured times; where the steps do not
say, a factor stays at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.calibrate.constants import NEWTON_STEP, NOISE_OF_STEPS, PRIOR, TURNS_OF_NEWTON
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.spec import ContentionSpec
from stepsight.overheads.operators import op_class
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Op
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import PricedJob, price
from stepsight.simulate.timeline import run
from stepsight.workload.files import Workload

KINDS = (
    "gemm", "vector", "lookup forward", "lookup backward", "communication", "host forward", "host backward",
    "host optimizer", "host collective", "overlap",
)  # fmt: skip
"""The kinds of work that have a factor of their own; "overlap" is what compute and communication
cost each other while they run side by side (the slowdowns less one)."""
_HOST = {"forward": 5, "view": 5, "copy": 5, "backward": 6, "optimizer": 7, "collective": 8}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One workload with its measured step, priced by the microbenchmarks' models."""

    name: str
    priced: PricedJob
    measured_us: float
    launch_kind: tuple[IntArray, ...]
    mark_kind: tuple[IntArray, ...]

    @classmethod
    def of(cls, workload: Workload, measured_us: float, platform: Platform, device: str) -> Rehearsal:
        priced = price(workload.job(device), platform)
        launches, marks = [], []
        for lane in priced.lanes:
            ops = priced.job.programs[int(lane.programs[0])].ops
            launches.append(
                np.array([_launch_kind(op, i) for op in ops for i in range(len(launches_of(op)))])
            )
            kind = np.full(lane.lane.tape.marks, 5)
            for i, op in enumerate(ops):
                first, last = lane.lane.tape.op_start_mark[i], lane.lane.tape.op_end_mark[i]
                kind[first : last + 1] = _HOST[op_class(op.name)]
            marks.append(kind)
        return cls(workload.name, priced, measured_us, tuple(launches), tuple(marks))

    def step_us(self, factors: FloatArray, platform: Platform) -> float:
        """The simulated step when every kind of work takes ``factors`` times as long."""
        lanes = []
        for lane, launches, marks in zip(self.priced.lanes, self.launch_kind, self.mark_kind, strict=True):
            host = lane.times.host_us * factors[marks][:, None, None]
            device = (
                lane.times.device_us * factors[launches][:, None, None]
                if len(launches)
                else lane.times.device_us
            )
            lanes.append(replace(lane, times=Priced(host, device)))
        contention = scaled_contention(platform.spec.contention, float(factors[-1]))
        crowded = replace(platform, spec=replace(platform.spec, contention=contention))
        return run(replace(self.priced, lanes=tuple(lanes)), crowded).step_us


def scaled_contention(contention: ContentionSpec, factor: float) -> ContentionSpec:
    """Slowdowns whose excess over one is ``factor`` times as large."""
    return replace(
        contention,
        compute_under_comm=round(1 + (contention.compute_under_comm - 1) * factor, 6),
        comm_under_compute=round(1 + (contention.comm_under_compute - 1) * factor, 6),
    )


def _launch_kind(op: Op, position: int) -> int:
    item = launches_of(op)[position]
    if isinstance(item, Collective):
        return 4
    return {"gemm": 0, "embedding": 2, "embedding_backward": 3}.get(item.family, 1)


@dataclass(frozen=True, slots=True)
class InStep:
    """The factors by kind of work, and how well the steps are met with and without them."""

    factors: Mapping[str, float]
    errors_before: Mapping[str, float]
    errors_after: Mapping[str, float]

    @property
    def spread(self) -> float:
        """Standard deviation of ln(predicted / measured) over the rehearsals."""
        return (
            float(np.sqrt(np.mean(np.square(list(self.errors_after.values()))))) if self.errors_after else 0.0
        )


def find_factors(rehearsals: Sequence[Rehearsal], platform: Platform) -> InStep:
    """The most probable factors: Gauss–Newton on ln(predicted / measured) with a prior at one."""
    x = np.zeros(len(KINDS))
    if not rehearsals:
        return InStep(dict.fromkeys(KINDS, 1.0), {}, {})
    first = _errors(rehearsals, x, platform)
    slope = np.zeros((len(rehearsals), len(x)))
    for turn in range(TURNS_OF_NEWTON):
        errors = _errors(rehearsals, x, platform)
        weight = 1 / (
            NOISE_OF_STEPS**2 + (0.5 * errors) ** 2
        )  # a step that was disturbed must not bend the rest
        if turn % 2 == 0:  # the slopes change little from one turn to the next
            slope = np.stack(
                [
                    (_errors(rehearsals, x + NEWTON_STEP * unit, platform) - errors) / NEWTON_STEP
                    for unit in np.eye(len(x))
                ],
                axis=1,
            )
        normal = slope.T @ (weight[:, None] * slope) + np.diag(PRIOR**-2.0)
        move = np.linalg.solve(normal, -slope.T @ (weight * errors) - x / PRIOR**2)
        x = x + np.clip(move, -0.5, 0.5)
        if np.abs(move).max() < 0.01:
            break
    last = _errors(rehearsals, x, platform)
    names = [r.name for r in rehearsals]
    factors = {kind: round(float(f), 4) for kind, f in zip(KINDS, np.exp(x), strict=True)}
    return InStep(
        factors, dict(zip(names, first.tolist(), strict=True)), dict(zip(names, last.tolist(), strict=True))
    )


def _errors(rehearsals: Sequence[Rehearsal], x: FloatArray, platform: Platform) -> FloatArray:
    factors = np.exp(x)
    return np.array([np.log(r.step_us(factors, platform) / r.measured_us) for r in rehearsals])
