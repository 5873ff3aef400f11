"""One step of a run as a job: whose host times it takes, and how late absent ranks come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from stepsight.errors import InputError
from stepsight.overheads.tables import Overheads
from stepsight.platform.load import Platform
from stepsight.prediction.answer import INTERVAL_SIGMAS
from stepsight.program.job import Collective, Kernel, Op
from stepsight.program.observation import Observation, ObservedJob, OpObservations
from stepsight.simulate.price import estimate_collective
from stepsight.trace.constants import QUEUE_GAP_US
from stepsight.trace.step.host_times import (
    gathered,
    pooled,
    samples_of,
    with_individual,
    with_shared,
)
from stepsight.trace.step.job import (
    Calls,
    clean_steps,
    collective_calls,
    host_delay_us,
    host_program,
    job_of,
    rank_program,
    typical_step,
    with_late_peers,
)
from stepsight.trace.step.program import StepProgram
from stepsight.trace.step.run import TraceRun

INDIVIDUAL, TRACED = "individual", "traced"
"""Whose host times: those of the run's other steps or ranks, or the step's own."""


def trace_job(
    run: TraceRun, step: int | None = None, overheads: str = INDIVIDUAL, shared: Overheads | None = None, *,
    late_peers: bool = True, own: Platform | None = None,
) -> ObservedJob:  # fmt: skip
    """One step of a run as a job, with host times from ``overheads``, or from a ``shared`` table.

    With ``late_peers``, ranks without a trace come to collectives as late as in the run's other steps.
    ``own`` is the machine whose links say how long a collective may take at most.
    """
    step = typical_step(run) if step is None else step
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    if not any(p.ops for p in programs.values()):
        raise _without_work(run)
    if shared is not None:
        programs = {rank: with_shared(p, shared) for rank, p in programs.items()}
    elif overheads == INDIVIDUAL:
        programs = _with_others(run, step, programs)
    job = job_of(run, programs)
    return _with_late_peers(run, step, job, own) if run.missing and late_peers else job


def _without_work(run: TraceRun) -> InputError:
    """Why a step shows no work: none was recorded, it was lost, or nothing joins it with the host."""
    first = run.ranks[0]
    kernels = len(first.linked.trace.gpu)
    if kernels and not first.linked.launches:
        return InputError(
            first.path, f"holds {kernels} kernels and copies, none of which names a launch call of the trace",
            "kernel and cudaLaunchKernel events must share a correlation: export the trace again, unfiltered",
        )  # fmt: skip
    if not kernels and first.linked.trace.warnings:
        return InputError(
            first.path, f"shows no work on a GPU ({'; '.join(first.linked.trace.warnings)})",
            "kernels come last in a trace: copy the whole file again",
        )  # fmt: skip
    return InputError(
        first.path, "shows no work launched on a GPU in that step",
        "record with ProfilerActivity.CUDA as well as CPU",
    )  # fmt: skip


def _with_others(run: TraceRun, step: int, programs: dict[int, StepProgram]) -> dict[int, StepProgram]:
    """Host times from the other clean steps; with one step only, from the other ranks."""
    others = [s for s in clean_steps(run) if s != step]
    if others:
        pools = {r.rank: gathered(host_program(run, r, s) for s in others) for r in run.ranks}
        return {r: with_individual(p, pools[r]) for r, p in programs.items()}
    if len(programs) < 2:
        return programs
    samples = {r: samples_of(p) for r, p in programs.items()}
    return {
        r: with_individual(p, pooled(found for other, found in samples.items() if other != r))
        for r, p in programs.items()
    }


def _with_late_peers(run: TraceRun, step: int, job: ObservedJob, own: Platform | None) -> ObservedJob:
    others = [
        job_of(run, {r.rank: host_program(run, r, s) for r in run.ranks})
        for s in clean_steps(run)
        if s != step
    ]
    known: dict[tuple[str, str, float], float] = {}

    def longest_us(c: Collective) -> float:
        key = c.group, c.kind, c.bytes
        if key not in known:
            estimate = estimate_collective(job.job, own, c) if own else None
            sigmas = INTERVAL_SIGMAS * estimate.spread if estimate else 0.0
            known[key] = estimate.time_us * math.exp(sigmas) if estimate else math.inf
        return known[key]

    late = {
        r.rank: host_delay_us((_sized_calls(job, o, r.rank) for o in others), longest_us) for r in run.ranks
    }
    return with_late_peers(job, late)


def _sized_calls(job: ObservedJob, other: ObservedJob, rank: int) -> Calls:
    """A rank's collectives of another step, as large as the same calls of the step predicted."""
    sized = collective_calls(job, job.job.program_of_rank[rank])
    calls = collective_calls(other, other.job.program_of_rank[rank])
    return {
        call: (
            replace(c, bytes=sized[call][0].bytes) if call in sized and sized[call][0].kind == c.kind else c,
            seen,
        )
        for call, (c, seen) in calls.items()
    }


def with_kept_delays(job: ObservedJob) -> ObservedJob:
    """The job in which of all delays before kernels only those stay that nothing explains: the platform
    states the usual ones."""
    return with_kernels(
        job, lambda k, o: (k, replace(o, late_us=kept_delay_us(o), waited_us=0.0) if o.late_us else o)
    )


def kept_delay_us(observed: Observation, factor: float = 1.0) -> float:
    """The delay before a kernel that stays, times ``factor``."""
    unexplained_us = observed.late_us - observed.waited_us
    if unexplained_us <= QUEUE_GAP_US:
        return 0.0
    return factor * unexplained_us


def with_kernels(
    job: ObservedJob, change: Callable[[Kernel, Observation], tuple[Kernel, Observation]]
) -> ObservedJob:
    """The job with every kernel and its observation changed."""

    def changed(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        if not op.kernels:
            return op, seen
        made = [change(k, o) for k, o in zip(op.kernels, seen, strict=False)]
        kernels = tuple(k for k, _ in made)
        return replace(op, kernels=kernels), (*(o for _, o in made), *seen[len(kernels) :])

    return job.each(changed)
