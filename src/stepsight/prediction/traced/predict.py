"""Predict a traced step: the trace's op stream and host times, kernels timed by the models.

Replay takes every duration from the trace instead, or only those of the categories named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsight.errors import InputError
from stepsight.overheads.sharing import SharedTimes
from stepsight.overheads.tables import Overheads
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import Prediction, predict_job
from stepsight.prediction.sensitivity import HOST_SPREAD
from stepsight.program.job import Job
from stepsight.simulate.price import REPLAYABLE
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, simulate
from stepsight.trace.step.absent_peers import (
    collective_calls,
    lateness_us,
    with_late_peers,
    without_late_peers,
)
from stepsight.trace.step.caveats import caveats
from stepsight.trace.step.host_times import (
    gathered,
    samples_of,
    with_individual,
    with_other_workloads,
    with_shared,
)
from stepsight.trace.step.job import clean_steps, job_of, rank_program, typical_step
from stepsight.trace.step.platforms import guess_platform, replay_platform, traced_platform
from stepsight.trace.step.program import StepProgram
from stepsight.trace.step.recording import recording_gaps
from stepsight.trace.step.run import TraceRun, load_trace, measured_step_us
from stepsight.trace.step.sleeps import sleeps

INDIVIDUAL, SHARED, PACED, TRACED = "individual", "shared", "paced", "traced"
"""Whose host times: other steps' or ranks' of the run; other workloads'; other workloads' at the pace
of the run's other steps or ranks; the step's own."""
INDIVIDUAL_SPREAD = 0.05
"""Host time of a step by the run's other steps or ranks against what it took: 0.048, the root mean square
over the 19 training runs of docs/accuracy.md (0.01 to 0.11 a run)."""
HOST_SPREADS = {TRACED: 0.0, INDIVIDUAL: INDIVIDUAL_SPREAD}
"""How far host times may be off by whose they are; other workloads' as far as any table's."""
PREFIX = "platform."


def trace_job(
    run: TraceRun, step: int | None = None, overheads: str = INDIVIDUAL,
    shared: Overheads | SharedTimes | None = None, *, late_peers: bool = True,
) -> Job:  # fmt: skip
    """One step of a run as a job, with host times from ``overheads``.

    ``shared`` holds other workloads' host times: a table, or what they and other hosts show. With
    ``late_peers``, ranks without a trace come to collectives as late as they did in the run's other steps.
    """
    step = typical_step(run) if step is None else step
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    if not any(p.ops for p in programs.values()):
        raise InputError(
            run.ranks[0].path, "shows no work launched on a GPU in that step",
            "record with ProfilerActivity.CUDA as well as CPU",
        )  # fmt: skip
    if isinstance(shared, SharedTimes) and overheads in (SHARED, PACED):
        programs = _with_other_workloads(run, step, programs, shared, paced=overheads == PACED)
    elif overheads == SHARED and isinstance(shared, Overheads):
        programs = {rank: with_shared(p, shared) for rank, p in programs.items()}
    elif overheads == INDIVIDUAL:
        programs = _with_others(run, step, programs)
    job = job_of(run, programs)
    return _with_late_peers(run, step, job) if run.missing and late_peers else job


def _with_others(run: TraceRun, step: int, programs: dict[int, StepProgram]) -> dict[int, StepProgram]:
    """Host times from the other clean steps; with one step only, from the other ranks."""
    others = [s for s in clean_steps(run) if s != step]
    if others:
        pools = {r.rank: gathered(rank_program(run, r, s) for s in others) for r in run.ranks}
        return {r: with_individual(p, pools[r]) for r, p in programs.items()}
    if len(programs) < 2:
        return programs
    return {
        r: with_individual(p, gathered(q for other, q in programs.items() if other != r))
        for r, p in programs.items()
    }


def _with_late_peers(run: TraceRun, step: int, job: Job) -> Job:
    others = [
        job_of(run, {r.rank: rank_program(run, r, s) for r in run.ranks})
        for s in clean_steps(run)
        if s != step
    ]
    late = {
        r.rank: lateness_us(collective_calls(o.programs[o.program_of_rank[r.rank]]) for o in others)
        for r in run.ranks
    }
    return with_late_peers(job, late)


def _with_other_workloads(
    run: TraceRun, step: int, programs: dict[int, StepProgram], shared: SharedTimes, *, paced: bool
) -> dict[int, StepProgram]:
    """Host times from other workloads; what the run pauses on purpose, and if wanted its pace, from its
    other steps, or with one step only, from the other ranks; what the profiler did for itself left out."""
    others = [s for s in range(run.steps) if s != step]
    clean = [s for s in clean_steps(run) if s != step]
    made = {}
    for rank in run.ranks:
        pauses = sleeps([rank_program(run, rank, s) for s in others])
        seen = [(rank.linked, rank_program(run, rank, s)) for s in clean] or [
            (r.linked, programs[r.rank]) for r in run.ranks if r is not rank
        ]
        samples = (x for t, p in seen for x in samples_of(p, {**pauses, **recording_gaps(t, p)}))
        here = shared.at(shared.pace_of(samples)) if paced else shared
        made[rank.rank] = with_other_workloads(programs[rank.rank], here, pauses)
    return made


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Everything a prediction of a traced step needs: the job, the platform, and what to say."""

    run: TraceRun
    job: Job
    platform: Platform
    taken: tuple[str, ...]
    notes: tuple[str, ...]
    host_spread: float = HOST_SPREAD

    @property
    def steps(self) -> int:
        """A run of several steps is predicted in its steady state, a single one from its start."""
        return STEADY_STEPS if self.run.steps > 1 else 1


def traced_step(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool | Iterable[str] = False, overrides: Sequence[str] = (), step: int | None = None,
    overheads: str | None = None, shared: Overheads | SharedTimes | None = None,
) -> TracedStep:  # fmt: skip
    """Make ready a step of a trace for prediction; `predict_trace` explains the arguments."""
    run = paths if isinstance(paths, TraceRun) else load_trace(paths)
    taken = REPLAYABLE if replay is True else tuple(replay or ())
    chosen, notes = _platform(run, platform, overrides)
    if taken == REPLAYABLE:
        chosen = replay_platform(chosen)
    elif platform is None:
        chosen = traced_platform(chosen, run)
    whose = overheads or (TRACED if "host" in taken else INDIVIDUAL)
    # A replayed collective holds what it waited for absent peers already.
    job = trace_job(run, step, whose, shared, late_peers="collectives" not in taken)
    if run.missing:
        notes.append(
            f"{len(run.missing)} of {run.world_size} ranks have no trace: stand-ins take their place"
            + _said_of_late_peers(job)
        )
    if whose == INDIVIDUAL and run.steps == 1 and len(run.ranks) == 1:
        notes.append("one step of one rank: host times are that step's own")
    if "kernels" not in taken:
        notes += caveats(run, typical_step(run) if step is None else step)
    notes += [w for w in run.warnings if "stand-ins" not in w]
    return TracedStep(run, job, chosen, taken, tuple(notes), HOST_SPREADS.get(whose, HOST_SPREAD))


def _said_of_late_peers(job: Job) -> str:
    late_us = max(sum(op.collective.late_us for op in p.ops if op.collective) for p in job.programs)
    if late_us == 0.0:
        return ""
    return (
        f" and come to collectives {late_us / 1e3:.1f} ms late in all, as the run's other steps show"
        " (compare --what-if peers-on-time leaves it out)"
    )


def predict_trace(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool | Iterable[str] = False, overrides: Sequence[str] = (), step: int | None = None,
    overheads: str | None = None, shared: Overheads | SharedTimes | None = None,
) -> Prediction:  # fmt: skip
    """Predict (or with ``replay``, rebuild) a step of a trace.

    ``platform`` defaults to the machine of the trace. ``replay`` may name categories
    ("kernels", "collectives", "host") to take from the trace; True takes all.
    """
    made = traced_step(
        paths, platform, replay=replay, overrides=overrides, step=step, overheads=overheads, shared=shared
    )
    return predict_step(made)


def predict_step(made: TracedStep) -> Prediction:
    """Predict a traced step that is ready, as recorded or changed by a what-if."""
    return predict_job(
        made.job, made.platform, workload=_name(made.run), replay=made.taken, steps=made.steps,
        measured_us=measured_step_us(made.run), notes=made.notes, host_spread=made.host_spread,
    )  # fmt: skip


def simulate_trace(
    run: TraceRun, platform: str | Platform | None = None, *, replay: bool | Iterable[str] = False,
    step: int | None = None, overheads: str | None = None, shared: Overheads | SharedTimes | None = None,
    late_peers: bool = True,
) -> Timeline:  # fmt: skip
    """The timeline alone, without intervals and sensitivities: several times as fast."""
    made = traced_step(run, platform, replay=replay, step=step, overheads=overheads, shared=shared)
    job = made.job if late_peers else without_late_peers(made.job)
    return simulate(job, made.platform, replay=made.taken, steps=made.steps)


def _platform(
    run: TraceRun, platform: str | Platform | None, overrides: Sequence[str]
) -> tuple[Platform, list[str]]:
    if isinstance(platform, Platform):
        return platform, []
    changes = [o.removeprefix(PREFIX) for o in overrides]
    if platform:
        return load_platform(platform, changes), []
    name = guess_platform(run)
    return load_platform(name, changes), [f"platform {name}, as the trace's deviceProperties say"]


def _name(run: TraceRun) -> str:
    first = Path(run.ranks[0].path.split("::")[0])
    return first.name if len(run.ranks) == 1 else first.parent.name
