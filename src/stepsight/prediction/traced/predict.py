"""Predict a traced step: the trace's op stream, timed by the trace, by the models, or by both.

Anchored, the default: what the trace measured stays, and what changes is scaled by the models (`anchoring`).
Models only: the trace gives the op stream, the host times of its other steps, and what no model can know.
Replay: every duration is the trace's, or only those of the categories named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from stepsight.errors import InputError
from stepsight.overheads.tables import Overheads
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import METHOD_SPREAD, Prediction, predict_job
from stepsight.prediction.breakdown import HOST_SPREAD
from stepsight.prediction.provenance import Origin, TimedBy
from stepsight.prediction.traced.anchoring import anchored, by_models_elsewhere, moved, rescaled, same_gpu
from stepsight.prediction.traced.jobs import INDIVIDUAL, TRACED, trace_job, with_kept_delays
from stepsight.program.observation import ObservedJob, of_collective
from stepsight.simulate.price import REPLAYABLE
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, simulate
from stepsight.trace.constants import INDIVIDUAL_SPREAD, MODELS_SPREAD, MOST_RESCALING, NOTED_RESCALING
from stepsight.trace.reading.files import collector_off
from stepsight.trace.step.caveats import caveats, cut_off
from stepsight.trace.step.job import typical_step, without_late_peers
from stepsight.trace.step.platforms import own_platform, replay_platform, traced_platform
from stepsight.trace.step.run import TraceRun, load_trace, measured_step_us

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
    taken: tuple[str, ...]
    notes: tuple[str, ...]
    host_spread: float = HOST_SPREAD
    measured_us: float | None = None
    timed_by: TimedBy | None = None

    @property
    def origin(self) -> Origin:
        """What the traced machine took, whatever platform the step is moved to."""
        return Origin(measured_step_us(self.run), self.own.name, self.timed_by)

    @property
    def method_spread(self) -> float:
        """How far the step may be off beyond what its parts explain."""
        return models_spread() if self.basis is Basis.MODELS else METHOD_SPREAD

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


def models_spread() -> float:
    """How far a step by the models alone may be off beyond what its parts explain."""
    return max(METHOD_SPREAD, MODELS_SPREAD)


def traced_step(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool | Iterable[str] = False, models_only: bool = False, overrides: Sequence[str] = (),
    step: int | None = None, overheads: str | None = None, shared: Overheads | None = None,
    machine: Platform | None = None, as_recorded: bool = False,
) -> TracedStep:  # fmt: skip
    """Make ready a step of a trace for prediction; `predict_trace` explains the arguments.

    ``as_recorded``: the caller changes nothing, so that on its own machine only measured times count.
    """
    run = paths if isinstance(paths, TraceRun) else load_trace(paths)
    taken = REPLAYABLE if replay is True else tuple(replay or ())
    basis = Basis.REPLAY if taken == REPLAYABLE else Basis.ANCHORED
    if models_only or (taken and taken != REPLAYABLE) or overheads or shared:
        basis = Basis.MODELS
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
    whose = overheads or (INDIVIDUAL if basis is Basis.MODELS and "host" not in taken else TRACED)
    # A replayed collective holds what it waited for absent peers already.
    late_peers = basis is Basis.MODELS and "collectives" not in taken
    job = trace_job(run, step, whose, shared, late_peers=late_peers, own=own)
    timed_by: TimedBy | None = None
    if basis is Basis.MODELS:
        target = chosen if chosen is not None else traced_platform(own, run)
        job = with_kept_delays(job)
        timed_by = None if "kernels" in taken else TimedBy.of(job)
        if chosen is not None and elsewhere:
            job = by_models_elsewhere(job, own, chosen)
    else:
        target, taken = replay_platform(own), REPLAYABLE
        if basis is Basis.ANCHORED:
            job, more = _anchored_on(job, run, own, target, as_recorded=as_recorded and not elsewhere)
            notes += more
    if run.missing:
        notes.append(
            f"{len(run.missing)} of {run.world_size} ranks have no trace: stand-ins take their place"
            + _late_peers_note(job)
        )
    if whose == INDIVIDUAL and run.steps == 1 and len(run.ranks) == 1:
        notes.append("one step of one rank: host times are that step's own")
    if basis is Basis.MODELS and "kernels" not in taken:
        notes += caveats(run, typical_step(run) if step is None else step)
    notes += [*cut_off(run), *(w for w in run.warnings if "stand-ins" not in w)]
    measured_us = measured_step_us(run)
    made = TracedStep(
        run, job, target, own, basis, taken, tuple(notes), _host_spread(run, whose),
        None if elsewhere else measured_us, timed_by,
    )  # fmt: skip
    if chosen is None or not elsewhere:
        return made
    where = chosen.name if chosen.name != own.name else "the same with changed figures"
    note = f"the trace's step took {measured_us / 1e3:.2f} ms on {own.name}; predicted for {where}"
    if basis is Basis.ANCHORED:
        made = made.on(chosen)
    return replace(made, notes=(note, *made.notes))


def _host_spread(run: TraceRun, whose: str) -> float:
    """How far the host times may be off: of a run whose steps differ, as far as they differ."""
    if whose != INDIVIDUAL:
        return 0.0 if whose == TRACED else HOST_SPREAD
    usual = INDIVIDUAL_SPREAD
    periods = np.concatenate([r.periods_us for r in run.ranks])
    periods = periods[np.isfinite(periods)]
    return max(usual, float(np.std(np.log(periods)))) if len(periods) > 1 else usual


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
    if not 1 / MOST_RESCALING <= factor <= MOST_RESCALING:
        note = f"rebuilt from the trace the step takes {walked_us / 1e3:.2f} ms, by the GPU timeline"
        note += f" {measured_us / 1e3:.2f} ms: too far apart to scale the one to the other"
        return (job if as_recorded else anchored(job, own)), [note]
    note = f"the step shown takes {walked_us / 1e3:.2f} ms; times are scaled by {factor:.3f} to the usual one"
    job = rescaled(job, factor) if as_recorded else anchored(job, own, factor=factor)
    return job, [note] if abs(factor - 1) > NOTED_RESCALING else []


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


def predict_trace(
    paths: Path | str | Sequence[Path | str] | TraceRun, platform: str | Platform | None = None, *,
    replay: bool | Iterable[str] = False, models_only: bool = False, overrides: Sequence[str] = (),
    step: int | None = None, overheads: str | None = None, shared: Overheads | None = None,
    machine: Platform | None = None,
) -> Prediction:  # fmt: skip
    """Predict (or with ``replay``, rebuild) a step of a trace.

    ``platform`` defaults to the machine of the trace. By default the prediction is anchored on what the
    trace measured; ``models_only`` times every kernel and collective that has known sizes by the models.
    ``replay`` may name categories ("kernels", "collectives", "host") to take from the trace; True takes all.
    ``machine`` is the trace's own, where it is known better than the trace tells.
    """
    with collector_off():
        made = traced_step(
            paths, platform, replay=replay, models_only=models_only, overrides=overrides, step=step,
            overheads=overheads, shared=shared, machine=machine, as_recorded=True,
        )  # fmt: skip
        return predict_step(made)


def predict_step(made: TracedStep) -> Prediction:
    """Predict a traced step that is ready, as recorded or changed by a what-if."""
    answer = predict_job(
        made.job.job, made.platform, seen=made.job.seen, workload=_name(made.run), replay=made.taken,
        steps=made.steps, measured_us=made.measured_us, notes=made.notes, host_spread=made.host_spread,
        basis=made.basis.value, method_spread=made.method_spread,
    )  # fmt: skip
    return replace(answer, origin=made.origin)


def simulate_trace(
    run: TraceRun, platform: str | Platform | None = None, *, replay: bool | Iterable[str] = False,
    models_only: bool = True, step: int | None = None, overheads: str | None = None,
    shared: Overheads | None = None, late_peers: bool = True,
) -> Timeline:  # fmt: skip
    """The timeline alone, without intervals and sensitivities: several times as fast."""
    made = traced_step(
        run, platform, replay=replay, models_only=models_only and replay is not True, step=step,
        overheads=overheads, shared=shared,
    )  # fmt: skip
    job = made.job if late_peers else without_late_peers(made.job)
    return simulate(job.job, made.platform, replay=made.taken, steps=made.steps, seen=job.seen)


def _name(run: TraceRun) -> str:
    first = Path(run.ranks[0].path.split("::")[0])
    return first.name if len(run.ranks) == 1 else first.parent.name
