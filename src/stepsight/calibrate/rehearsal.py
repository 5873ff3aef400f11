"""What lies between microbenchmarks and a step, found on rehearsal steps.

Caches that other operators have emptied, memory that all ranks share, threads of the
communication library on the rank's own core, Python between operators: each makes a kind of
work slower by about the same factor in every step. The factors are those that bring the
simulated steps of random workloads closest to their measured times; where the steps do not
say, a factor stays at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepsight.calibrate.draws import Document
from stepsight.calibrate.journal import Journal
from stepsight.constants import area
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.spec import ContentionSpec
from stepsight.overheads.tables import op_class
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Kernel
from stepsight.run.measure import measure_all
from stepsight.run.ranks import Ranks
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import PricedJob, price
from stepsight.simulate.timeline import run
from stepsight.workload.files import Workload, parse_workload

_CONSTANTS = area("calibrate")
NEWTON_STEP = _CONSTANTS.number("NEWTON_STEP")
NOISE_OF_STEPS = _CONSTANTS.number("NOISE_OF_STEPS")
PRIOR = np.array(_CONSTANTS.numbers("PRIOR"))
TOGETHER = _CONSTANTS.whole("TOGETHER")
TURNS_OF_NEWTON = _CONSTANTS.whole("TURNS_OF_NEWTON")

KINDS = (
    "gemm", "vector", "lookup forward", "lookup backward", "communication", "host forward", "host backward",
    "host optimizer", "host collective", "overlap",
)  # fmt: skip
"""The kinds of work that have a factor of their own; "overlap" is what compute and communication
cost each other while they run side by side (the slowdowns less one)."""
HOST_KINDS = {
    "forward": "host forward", "view": "host forward", "copy": "host forward", "backward": "host backward",
    "optimizer": "host optimizer", "collective": "host collective",
}  # fmt: skip
"""Which kind of work the host's time for a class of operators is."""
_LAUNCH_KINDS = {"gemm": "gemm", "embedding": "lookup forward", "embedding_backward": "lookup backward"}


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
                np.array([_launch_kind(item) for op in ops for item in launches_of(op)], np.int64)
            )
            kind = np.full(lane.lane.tape.marks, KINDS.index("host forward"))
            for i, op in enumerate(ops):
                first, last = lane.lane.tape.op_start_mark[i], lane.lane.tape.op_end_mark[i]
                kind[first : last + 1] = KINDS.index(HOST_KINDS[op_class(op.name)])
            marks.append(kind)
        return cls(workload.name, priced, measured_us, tuple(launches), tuple(marks))

    def step_us(self, factors: FloatArray, platform: Platform) -> float:
        """The simulated step when every kind of work takes ``factors`` times as long."""
        lanes = []
        for lane, launches, marks in zip(self.priced.lanes, self.launch_kind, self.mark_kind, strict=True):
            host = lane.times.host_us * factors[marks][:, None, None]
            device = lane.times.device_us * factors[launches][:, None, None]
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


def _launch_kind(item: Kernel | Collective) -> int:
    if isinstance(item, Collective):
        return KINDS.index("communication")
    return KINDS.index(_LAUNCH_KINDS.get(item.family, "vector"))


@dataclass(frozen=True, slots=True)
class InStep:
    """The factors by kind of work, and ln(predicted / measured) of every rehearsal with them."""

    factors: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """Standard deviation over the rehearsals."""
        return float(np.sqrt(np.mean(np.square(list(self.errors.values()))))) if self.errors else 0.0


NOTHING_KNOWN = InStep(dict.fromkeys(KINDS, 1.0))


def find_factors(rehearsals: Sequence[Rehearsal], platform: Platform) -> InStep:
    """The most probable factors: Gauss–Newton on ln(predicted / measured) with a prior at one."""
    if not rehearsals:
        return NOTHING_KNOWN
    x = np.zeros(len(KINDS))
    slope = np.zeros((len(rehearsals), len(x)))
    for turn in range(TURNS_OF_NEWTON):
        errors = _errors(rehearsals, x, platform)
        # A step that was disturbed must not bend the rest.
        weight = 1 / (NOISE_OF_STEPS**2 + (0.5 * errors) ** 2)
        if turn % 2 == 0:  # the slopes change little from one turn to the next
            moved = [_errors(rehearsals, x + NEWTON_STEP * unit, platform) for unit in np.eye(len(x))]
            slope = (np.stack(moved, axis=1) - errors[:, None]) / NEWTON_STEP
        normal = slope.T @ (weight[:, None] * slope) + np.diag(PRIOR**-2.0)
        move = np.linalg.solve(normal, -slope.T @ (weight * errors) - x / PRIOR**2)
        x = x + np.clip(move, -0.5, 0.5)
        if np.abs(move).max() < 0.01:
            break
    factors = {kind: round(float(f), 4) for kind, f in zip(KINDS, np.exp(x), strict=True)}
    errors = _errors(rehearsals, x, platform)
    return InStep(factors, {r.name: float(e) for r, e in zip(rehearsals, errors, strict=True)})


def _errors(rehearsals: Sequence[Rehearsal], x: FloatArray, platform: Platform) -> FloatArray:
    factors = np.exp(x)
    return np.array([np.log(r.step_us(factors, platform) / r.measured_us) for r in rehearsals])


def pending(
    journal: Journal, stage: str, documents: Sequence[Document], passes: int
) -> list[tuple[int, list[Document]]]:
    """What is still to be measured: groups of different kinds of workloads, pass after pass, so that a slow
    minute of the machine spoils none of them and a budget that ends early has seen all kinds."""
    count = -(-len(documents) // TOGETHER)
    done = {(s["name"], s["pass"]) for s in journal.of(stage)}
    groups = [
        (number, [d for d in documents[i::count] if (d["name"], number) not in done])
        for number in range(passes)
        for i in range(count)
    ]
    return [(number, group) for number, group in groups if group]


def measure_group(
    ranks: Ranks, journal: Journal, stage: str, number: int, documents: Sequence[Document], *, steps: int,
    blocks: int,
) -> None:  # fmt: skip
    """Train a group of workloads, their blocks of steps interleaved, and keep the steps. The ranks are fresh:
    in memory that benchmarks have used steps take some percent longer."""
    workloads = [parse_workload(dict(d), d["name"]) for d in documents]
    measured = measure_all(ranks, workloads, steps=steps, blocks=blocks)
    journal.add(
        stage,
        [
            {"name": d["name"], "pass": number, "document": d, "steps_us": m.job_us.round(1).tolist()}
            for d, m in zip(documents, measured, strict=True)
        ],
    )
