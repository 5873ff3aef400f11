"""Predict a traced step: the trace's op stream, timed by the trace, by the models, or by both.

Anchored, the default: what the trace measured stays, and what changes is scaled by the models (`anchoring`).
Models only: the trace gives the op stream, the host times of its other steps, and what no model can know.
Replay: every duration is the trace's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, METHOD_SPREAD, Prediction, predict_job
from stepsight.prediction.breakdown import HOST_SPREAD, Origin, TimedBy
from stepsight.prediction.traced.anchoring import (
    anchored,
    by_models_elsewhere,
    moved,
    rescaled,
    same_gpu,
    with_kept_delays,
)
from stepsight.program.job import Collective, Sizing
from stepsight.program.observation import ObservedJob, of_collective
from stepsight.simulate.price import REPLAYABLE, estimate_collective
from stepsight.simulate.timeline import STEADY_STEPS, simulate
from stepsight.trace.files import collector_off
from stepsight.trace.job import (
    Calls,
    clean_steps,
    collective_calls,
    groups_of,
    host_delay_us,
    job_of,
    rank_program,
    typical_step,
    unmatched,
    with_late_peers,
)
from stepsight.trace.link import LinkedTrace
from stepsight.trace.platforms import own_platform, replay_platform, traced_platform
from stepsight.trace.program import StepProgram, gathered, pooled, samples_of, with_individual
from stepsight.trace.run import TraceRun, load_trace, measured_step_us
from stepsight.trace.steps import NO_MARKS

C = area("traces")

PREFIX = "platform."


class Basis(Enum):
    """What a prediction of a trace comes from."""

    ANCHORED = "anchored"
    MODELS = "models"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Everything a prediction of a traced step needs: the job, the platform, and what to say.

    ``own`` is the machine of the trace; ``measured_us`` the step's time there, None where the step was
    changed or ``platform`` is another one.
    """

    run: TraceRun
    job: ObservedJob
    platform: Platform
    own: Platform
    basis: Basis
    notes: tuple[str, ...]
    host_spread: float
    measured_us: float | None = None
    timed_by: TimedBy | None = None

    @property
    def replayed(self) -> tuple[str, ...]:
        """What keeps the trace's times, where it has any."""
        return () if self.basis is Basis.MODELS else REPLAYABLE

    @property
    def steps(self) -> int:
        """A run of several steps is predicted in its steady state, a single one from its start."""
        return STEADY_STEPS if self.run.steps > 1 else 1

    def on(self, platform: Platform) -> TracedStep:
        """The same step on another platform."""
        # Another GPU comes with another host, whose pace the trace does not tell.
        other = not same_gpu(self.own.spec.gpu, platform.spec.gpu)
        spread = max(self.host_spread, HOST_SPREAD) if other else self.host_spread
        if self.basis is not Basis.ANCHORED:
            return replace(self, platform=platform, measured_us=None, host_spread=spread)
        job, ready = moved(self.job, self.own, platform)
        return replace(self, job=job, platform=ready, measured_us=None, host_spread=spread)

    def predicted(self) -> Prediction:
        """The prediction of the step, as recorded or changed by a what-if."""
        spread = max(METHOD_SPREAD, C.MODELS_SPREAD) if self.basis is Basis.MODELS else METHOD_SPREAD
        found = predict_job(
            self.job.job, self.platform, seen=self.job.seen, replay=self.replayed, steps=self.steps,
            host_spread=self.host_spread, method_spread=spread,
        )  # fmt: skip
        return replace(
            found, workload=_name(self.run), measured_us=self.measured_us, basis=self.basis.value,
            notes=(*self.notes, *found.notes),
            origin=Origin(measured_step_us(self.run), self.own.name, self.timed_by),
        )  # fmt: skip


def traced_step(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool = False, models_only: bool = False, overrides: Sequence[str] = (),
    machine: Platform | None = None, as_recorded: bool = False,
) -> TracedStep:  # fmt: skip
    """Make ready the typical step of a trace for prediction; `predict_trace` explains the arguments.

    ``machine`` is the trace's own, where it is known better than the trace tells. ``as_recorded``: the caller
    changes nothing, so that on its own machine only measured times count.
    """
    run = paths if isinstance(paths, TraceRun) else load_trace(paths)
    basis = Basis.REPLAY if replay else Basis.MODELS if models_only else Basis.ANCHORED
    own, notes = own_platform(run)
    own = machine or own
    _refuse_host(overrides)
    chosen = _chosen(platform or (own.name if overrides else None), overrides)
    elsewhere = chosen is not None and not _is_machine(chosen, own)
    if basis is Basis.REPLAY and elsewhere:
        raise InputError(
            "--replay", f"the trace was recorded on {own.name}, not on {chosen.name if chosen else ''}",
            "leave --platform out to replay, or leave --replay out to predict that platform",
        )  # fmt: skip
    step, timed_by, spread = typical_step(run), None, 0.0
    if basis is Basis.MODELS:
        job = with_kept_delays(trace_job(run, step, own=own))
        timed_by, spread = TimedBy.of(job), _host_spread(run)
        target = chosen if chosen is not None else traced_platform(own, run)
        if chosen is not None and elsewhere:
            job = by_models_elsewhere(job, own, chosen)
    else:
        # A measured collective holds what it waited for absent peers already.
        job, target = trace_job(run, step, host_times=TRACED), replay_platform(own)
        if basis is Basis.ANCHORED:
            job, more = _anchored_on(job, run, own, target, as_recorded=as_recorded and not elsewhere)
            notes += more
    notes += _notes(run, step, job, basis)
    measured_us = measured_step_us(run)
    made = TracedStep(
        run, job, target, own, basis, tuple(notes), spread, None if elsewhere else measured_us, timed_by
    )
    if chosen is None or not elsewhere:
        return made
    where = chosen.name if chosen.name != own.name else "the same with changed figures"
    note = f"the trace's step took {measured_us / 1e3:.2f} ms on {own.name}; predicted for {where}"
    made = made.on(chosen) if basis is Basis.ANCHORED else made
    return replace(made, notes=(note, *made.notes))


def _notes(run: TraceRun, step: int, job: ObservedJob, basis: Basis) -> list[str]:
    """What the traces of a run leave out or leave unsure."""
    notes = []
    if run.missing:
        notes.append(
            f"{len(run.missing)} of {run.world_size} ranks have no trace: stand-ins take their place"
            + _late_peers_note(job)
        )
    if basis is Basis.MODELS:
        if run.steps == 1 and len(run.ranks) == 1:
            notes.append("one step of one rank: host times are that step's own")
        notes += caveats(run, step)
    return [*notes, *cut_off(run), *(w for w in run.warnings if "stand-ins" not in w)]


def _host_spread(run: TraceRun) -> float:
    """How far host times of a run's other steps may be off: as far as its steps differ."""
    periods = np.concatenate([r.periods_us for r in run.ranks])
    periods = periods[np.isfinite(periods)]
    found = float(np.std(np.log(periods))) if len(periods) > 1 else 0.0
    return max(C.INDIVIDUAL_SPREAD, found)


def _anchored_on(
    job: ObservedJob, run: TraceRun, own: Platform, target: Platform, *, as_recorded: bool
) -> tuple[ObservedJob, list[str]]:
    """The anchored job, its times scaled so that the walk takes what the run's step took.

    A run's steps differ; the walk repeats one of them. A step ``as_recorded`` keeps all measured times, so
    that no model need be asked how they compare.
    """
    steps = STEADY_STEPS if run.steps > 1 else 1
    walked_us = simulate(job.job, target, replay=REPLAYABLE, steps=steps, seen=job.seen).step_us
    measured_us = measured_step_us(run)
    factor = measured_us / walked_us if walked_us > 0 else 1.0
    if not 1 / C.MOST_RESCALING <= factor <= C.MOST_RESCALING:
        note = f"rebuilt from the trace the step takes {walked_us / 1e3:.2f} ms, by the GPU timeline"
        note += f" {measured_us / 1e3:.2f} ms: too far apart to scale the one to the other"
        return (job if as_recorded else anchored(job, own)), [note]
    note = f"the step shown takes {walked_us / 1e3:.2f} ms; times are scaled by {factor:.3f} to the usual one"
    job = rescaled(job, factor) if as_recorded else anchored(job, own, factor=factor)
    return job, [note] if abs(factor - 1) > C.NOTED_RESCALING else []


def _refuse_host(overrides: Sequence[str]) -> None:
    """A traced step keeps its own host: another one's speed would change nothing."""
    for given in overrides:
        field = given.removeprefix(PREFIX).partition("=")[0]
        if field.startswith("host."):
            raise InputError(
                f"--set {PREFIX}{field}", "has no effect on a trace, which keeps its own host times",
                "leave it out; `stepsight compare --trace … --what-if no-host` shows what the host costs",
            )  # fmt: skip


def _chosen(platform: str | Platform | None, overrides: Sequence[str]) -> Platform | None:
    if isinstance(platform, Platform):
        return platform
    return load_platform(platform, [o.removeprefix(PREFIX) for o in overrides]) if platform else None


def _is_machine(platform: Platform, own: Platform) -> bool:
    """Whether a platform is the traced one: the same GPU and links."""
    a, b = platform.spec, own.spec
    return same_gpu(a.gpu, b.gpu) and (a.link, a.nic, a.host) == (b.link, b.nic, b.host)


def predict_trace(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool = False, models_only: bool = False, overrides: Sequence[str] = (),
) -> Prediction:  # fmt: skip
    """Predict (or with ``replay``, rebuild) the typical step of a trace.

    ``platform`` defaults to the machine of the trace. By default the prediction is anchored on what the
    trace measured; ``models_only`` times every kernel and collective that has known sizes by the models.
    """
    with collector_off():
        return traced_step(
            paths, platform, replay=replay, models_only=models_only, overrides=overrides, as_recorded=True
        ).predicted()


_GENERIC = re.compile(
    r"(?:ranks?|workers?|gpu|traces?|profil(?:e|er|ing)|kineto|pytorch|torch|test|train(?:ing)?|data|nccl|steps?|logs?|out(?:put)?|results?"
    r"|json|gz|zip|pt|et|[\W\d_])*", re.IGNORECASE,
)  # fmt: skip
"""Names of files and folders that say nothing of the job."""


def _name(run: TraceRun) -> str:
    """The innermost of the file and its folders whose name says something, as far as all ranks share it."""
    files = [Path(rank.path.split("::")[0]).resolve() for rank in run.ranks]
    shared = [
        parts[0] for parts in zip(*(file.parts for file in files), strict=False) if len(set(parts)) == 1
    ]
    return next((part for part in reversed(shared) if not _GENERIC.fullmatch(part)), files[0].name)


INDIVIDUAL, TRACED = "individual", "traced"
"""Whose host times: those of the run's other steps or ranks, or the step's own."""


def trace_job(
    run: TraceRun, step: int, *, host_times: str = INDIVIDUAL, own: Platform | None = None
) -> ObservedJob:
    """One step of a run as a job.

    With ``individual`` host times, ranks without a trace come to collectives as late as in the run's other
    steps; ``own`` is the machine whose links say how long a collective may take at most.
    """
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    if not any(p.ops for p in programs.values()):
        raise _without_work(run)
    if host_times == TRACED:
        return job_of(run, programs)
    job = job_of(run, _with_others(run, step, programs))
    return _with_late_peers(run, step, job, own) if run.missing else job


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
        pools = {r.rank: gathered(rank_program(run, r, s, sized=False) for s in others) for r in run.ranks}
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
        job_of(run, {r.rank: rank_program(run, r, s, sized=False) for r in run.ranks})
        for s in clean_steps(run)
        if s != step
    ]

    @cache
    def longest_us(c: Collective) -> float:
        estimate = estimate_collective(job.job, own, c) if own else None
        return estimate.time_us * math.exp(INTERVAL_SIGMAS * estimate.spread) if estimate else math.inf

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


def _late_peers_note(job: ObservedJob) -> str:
    late_us = max(
        sum(of_collective(op, seen).late_us for op, seen in job.of_program(i))
        for i in range(len(job.job.programs))
    )
    if late_us == 0.0:
        return ""
    return (
        f" and come to collectives {late_us / 1e3:.1f} ms late in all, as the run's other steps show"
        " (compare --what-if peers-on-time leaves it out)"
    )


def caveats(run: TraceRun, step: int) -> list[str]:
    """Notes on one step of a run, for whoever reads its prediction by the models."""
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    notes = []
    counted, kept = (max(shares) for shares in zip(*map(_unrecorded, programs.values()), strict=True))
    if counted + kept > C.MUCH_UNSIZED:
        notes.append(
            f"{100 * (counted + kept):.0f} % of the GPU time has no recorded sizes (record with"
            f" record_shapes=True): {100 * counted:.0f} % is counted by launch grids,"
            f" {100 * kept:.0f} % keeps the trace's times, which no model predicts"
        )
    worst = max(programs, key=lambda rank: programs[rank].unexplained_us)
    late_us = programs[worst].unexplained_us
    if late_us > C.MUCH_DELAY * measured_step_us(run):
        notes.append(
            f"kernels of rank {worst} began {late_us / 1e3:.1f} ms late in all with the GPU idle and nothing"
            " recorded to wait for, as where nodes of a CUDA graph were not recorded: these delays are kept"
        )
    apart = unmatched(programs, groups_of(run, programs)) if len(programs) > 1 else {}
    if apart:
        ranks = sorted({r for members in apart.values() for r in members})
        notes.append(
            f"the collectives of ranks {ranks[0]} to {ranks[-1]} do not match each other; they keep the"
            " trace's times, waiting included"
        )
    return notes


def _unrecorded(program: StepProgram) -> tuple[float, float]:
    """Shares of the GPU time whose sizes launch grids count, and whose sizes nothing states."""
    total = counted = kept = 0.0
    for traced in program.ops:
        for i, seen in enumerate(traced.seen):
            time_us = seen.measured_us or 0.0
            total += time_us
            if seen.opaque:
                kept += time_us
            elif i < len(traced.op.kernels) and traced.op.kernels[i].sizing is Sizing.COUNTED:
                counted += time_us
    return (counted / total, kept / total) if total else (0.0, 0.0)


def cut_off(run: TraceRun) -> list[str]:
    """A single step whose recording began in its midst: kernels whose launches lie before it."""
    if run.steps > 1 or run.ranks[0].steps[0].how != NO_MARKS:
        return []
    share = max(_orphaned_share(r.linked) for r in run.ranks)
    if share <= C.MUCH_CUT_OFF:
        return []
    return [
        f"{100 * share:.0f} % of the GPU time was launched before the recording began:"
        " the step shown is a part of the real one"
    ]


def _orphaned_share(linked: LinkedTrace) -> float:
    total = sum(e.dur for e in linked.trace.gpu)
    return sum(e.dur for e in linked.earlier_work) / total if total else 0.0
