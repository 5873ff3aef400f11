"""``stepsight.diagnose``: a measured step against its prediction, and the likeliest reasons for the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from stepsight.capture.step.captured import CapturedStep
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.diagnose.measured import Figure, parse_figure, parse_log
from stepsight.prediction.diagnose.suspects import (
    FASTER_THAN_NOISE,
    SETTINGS,
    Suspect,
    log_density,
    machine_suspects,
)
from stepsight.prediction.learn.steps import AskedStep, ask, load_any
from stepsight.prediction.predict import predict

RANKING_SPREAD = 0.04
"""How exactly a suspect is to give the measured step: run-to-run noise, with the prediction otherwise right."""
MOST_SUSPECTS = 6
USUAL, SLOW, FAST = "as expected", "slower than expected", "faster than expected"
DATA_LOADER, NODE_NAME = "data loader", "one node"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A suspect at the severity that fits best.

    ``probability`` is among the suspects, given that one of them is the reason. ``change`` is the option that
    simulates it, ``step_us`` the step that it gives, ``check`` the cheapest measurement that would show it.
    """

    name: str
    probability: float
    severity: float
    step_us: float
    change: str
    check: str


@dataclass(frozen=True, slots=True)
class Variant:
    """The same job measured with other settings; ``steps_us`` are what the first two suspects would give."""

    assignments: tuple[str, ...]
    usual_us: float
    steps_us: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``percentile`` is the share of such runs that are predicted to be at most as slow as the measured one.

    ``longer`` are parts of a traced step, by how much longer than predicted each is, in µs."""

    prediction: Prediction
    measured_us: float
    percentile: float
    verdict: str
    suspects: tuple[Explanation, ...]
    tell_apart: Variant | None = None
    data_us: float | None = None
    memory_bytes: float | None = None
    longer: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "workload": self.prediction.workload,
            "platform": self.prediction.platform,
            "expected_us": self.prediction.step_us,
            "low_us": self.prediction.low_us,
            "high_us": self.prediction.high_us,
            "measured_us": self.measured_us,
            "percentile": self.percentile,
            "verdict": self.verdict,
            "suspects": [{n: getattr(s, n) for n in s.__slots__} for s in self.suspects],
            "notes": list(self.notes),
        }
        if self.tell_apart is not None:
            found["tell_apart"] = {
                "set": list(self.tell_apart.assignments),
                "usual_us": self.tell_apart.usual_us,
                "if_first_us": self.tell_apart.steps_us[0],
                "if_second_us": self.tell_apart.steps_us[1],
            }
        if self.longer:
            found["longer_than_predicted_us"] = dict(self.longer)
        return found


@dataclass(frozen=True, slots=True)
class _Observation:
    """One measured variant of the job, with the suspects' steps for it."""

    asked: AskedStep
    step_us: float
    measured_us: float
    suspects: Mapping[str, Suspect]


def diagnose(
    workload: str | Path | Mapping[str, Any],
    platform: Platform | str | Path,
    measured: str | None = None,
    *,
    log: str | None = None,
    data: str | None = None,
    memory_gb: float | None = None,
    also: Sequence[tuple[Sequence[str], str]] = (),
    trace: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Diagnosis:
    """Why a step takes as long as it was measured to.

    ``measured`` is a figure with its unit (``812ms``, ``41k tokens/s``, ``38% MFU``); ``log`` a line that states
    one. ``data`` is the time per step that the loop waits for data. ``also`` are measurements of the same job
    with other settings, each with its assignments.

    >>> diagnose("llama3-8b", "8xH100-SXM", "812ms").suspects[0].name  # doctest: +SKIP
    """
    on = platform if isinstance(platform, Platform) else load_platform(platform, overrides)
    job = load_any(workload, assignments)
    prediction = predict(job, on)
    figure = parse_log(log) if log else parse_figure(measured or "")
    whole_us = figure.step_us(prediction.throughput, prediction.step_us)
    data_us = _data_us(data)
    first = _observed(workload, assignments, on, job, prediction.step_us, whole_us - data_us)
    others = [_variant(workload, (*assignments, *more), on, parse_figure(text)) for more, text in also]
    spread = math.log(prediction.high_us / prediction.low_us) / (2 * INTERVAL_SIGMAS)
    percentile = NormalDist().cdf(math.log(whole_us / prediction.step_us) / spread)
    inside = prediction.low_us <= whole_us <= prediction.high_us
    verdict = USUAL if inside else SLOW if whole_us > prediction.step_us else FAST
    suspects = _ranked([first, *others], data_us, whole_us) if whole_us > prediction.step_us else ()
    return Diagnosis(
        prediction,
        whole_us,
        percentile,
        verdict,
        suspects,
        _tell_apart(workload, assignments, on, job, suspects, bool(also)),
        data_us or None,
        memory_gb * 1e9 if memory_gb else None,
        longer_parts(trace, on) if trace else (),
        tuple(_notes(prediction, memory_gb, verdict)),
    )


def _data_us(text: str | None) -> float:
    if not text:
        return 0.0
    figure = parse_figure(text)
    return figure.value if figure.kind == "time" else 0.0


def _notes(prediction: Prediction, memory_gb: float | None, verdict: str) -> list[str]:
    notes = []
    if memory_gb and prediction.memory:
        ratio = memory_gb * 1e9 / prediction.memory.total_bytes
        if abs(math.log(ratio)) > 0.15:
            more = "more" if ratio > 1 else "less"
            notes.append(
                f"memory is {ratio:.2f} times the predicted {prediction.memory.total_bytes / 1e9:.1f} GB: the run"
                f" keeps {more} than described (batch, recomputation, sharding, precision)"
            )
    if verdict == FAST:
        notes.append(
            "faster than described: check batch, sequence, recomputation and precision of the description, or"
            " learn the machine with `stepsight calibrate --runs`"
        )
    return notes


def _observed(
    workload: str | Path | Mapping[str, Any], assignments: Sequence[str], on: Platform, job: Any, step_us: float,
    measured_us: float,
) -> _Observation:  # fmt: skip
    asked = ask(job, on)
    suspects = {s.name: s for s in machine_suspects(asked.response, step_us, on)}
    if not isinstance(job, CapturedStep):
        scale = step_us / asked.step_us
        suspects |= {s.name: s for s in _settings(workload, assignments, on, step_us, scale)}
    return _Observation(asked, step_us, max(measured_us, 1e-3), suspects)


def _settings(
    workload: str | Path | Mapping[str, Any],
    assignments: Sequence[str],
    on: Platform,
    step_us: float,
    scale: float,
) -> list[Suspect]:
    """Settings that the job may not have after all, where they exist and make it slower."""
    found = []
    for setting in SETTINGS:
        try:
            changed_us = scale * ask(load_any(workload, (*assignments, *setting.assignments)), on).step_us
        except StepsightError:
            continue
        if changed_us < (1 + FASTER_THAN_NOISE) * step_us or any(
            math.isclose(changed_us, other.steps_us[0], rel_tol=1e-6) for other in found
        ):
            continue
        line = " ".join(setting.assignments)
        found.append(
            Suspect(
                setting.name,
                np.array([changed_us]),
                np.ones(1),
                lambda _, s=line: s,
                setting.check,
                setting.prior,
            )  # type: ignore[misc]
        )
    return found


def _variant(
    workload: str | Path | Mapping[str, Any], assignments: Sequence[str], on: Platform, figure: Figure
) -> _Observation:
    job = load_any(workload, assignments)
    asked = ask(job, on)
    return _observed(
        workload, assignments, on, job, asked.step_us, figure.step_us(asked.rates, asked.step_us)
    )


def _ranked(observations: Sequence[_Observation], data_us: float, whole_us: float) -> tuple[Explanation, ...]:
    """Suspects by how well they explain all measurements together."""
    first = observations[0]
    found: list[tuple[float, Explanation]] = []
    for name, suspect in first.suspects.items():
        if name == DATA_LOADER and (len(observations) > 1 or data_us):
            continue
        logs = log_density(suspect, first.measured_us, RANKING_SPREAD)
        for other in observations[1:]:
            its = other.suspects.get(name)
            steps: FloatArray = its.steps_us if its else np.full(len(suspect.steps_us), other.step_us)
            apart = np.log(other.measured_us / steps) / RANKING_SPREAD
            logs = logs - 0.5 * apart**2
        if suspect.steps_us.max() < (1 + FASTER_THAN_NOISE) * first.step_us:
            continue
        best = int(np.argmax(logs))
        weight = math.log(suspect.prior) + float(logs.max() + math.log(np.exp(logs - logs.max()).sum()))
        severity = float(suspect.severities[best])
        found.append(
            (weight, Explanation(name, 0.0, severity, float(suspect.steps_us[best]) + data_us, suspect.set_line(severity), suspect.check))
        )  # fmt: skip
    if data_us > FASTER_THAN_NOISE * whole_us:
        check = "more workers, pinned memory, or a step on a batch that stays on the GPU"
        line = f"{data_us / 1e3:.0f} ms of waiting for data per step, as measured"
        explains = min(data_us / max(whole_us - first.step_us, 1e-9), 1.0)
        top = max((w for w, _ in found), default=0.0)
        found.append(
            (top + math.log(max(explains, 1e-6) / 0.3), Explanation(DATA_LOADER, 0.0, 1 + data_us / first.step_us, first.step_us + data_us, line, check))
        )  # fmt: skip
    found.sort(key=lambda one: -one[0])
    total = sum(math.exp(w - found[0][0]) for w, _ in found) if found else 1.0
    listed = [
        Explanation(e.name, math.exp(w - found[0][0]) / total, e.severity, e.step_us, e.change, e.check)
        for w, e in found[:MOST_SUSPECTS]
    ]
    return tuple(listed)


VARIANTS = (
    ("batch_per_rank", 2.0), ("parallel.micro_batch", 2.0), ("batch", 2.0), ("parallel.ranks", 0.0),
)  # fmt: skip


def _tell_apart(
    workload: str | Path | Mapping[str, Any], assignments: Sequence[str], on: Platform, job: Any,
    suspects: Sequence[Explanation], measured_already: bool,
) -> Variant | None:  # fmt: skip
    """The variant of the job on which the first two suspects differ most."""
    if len(suspects) < 2 or isinstance(job, CapturedStep) or measured_already:
        return None
    best: tuple[float, Variant] | None = None
    for more in _variants(job, on):
        try:
            changed = load_any(workload, (*assignments, *more))
            asked = ask(changed, on)
            its = _observed(
                workload, (*assignments, *more), on, changed, asked.step_us, asked.step_us
            ).suspects
        except StepsightError:
            continue
        steps = [_at(its.get(s.name), s.severity, asked.step_us) for s in suspects[:2]]
        apart = abs(math.log(steps[0] / steps[1]))
        if best is None or apart > best[0]:
            best = (apart, Variant(tuple(more), asked.step_us, (steps[0], steps[1])))
    return best[1] if best and best[0] > 2 * RANKING_SPREAD else None


def _at(suspect: Suspect | None, severity: float, usual_us: float) -> float:
    if suspect is None:
        return usual_us
    return (
        float(np.interp(severity, suspect.severities, suspect.steps_us))
        if suspect.continuous
        else float(suspect.steps_us[0])
    )


def _variants(job: Any, on: Platform) -> list[tuple[str, ...]]:
    """Cheap measurements of the same job: another batch, one node, one GPU."""
    spec = on.spec
    config = getattr(job, "config", None)
    found: list[tuple[str, ...]] = []
    for name in ("batch", "batch_per_rank"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            found.append((f"{name}={2 * value}",))
            if value % 2 == 0:
                found.append((f"{name}={value // 2}",))
    if spec.nodes > 1:
        found.append((f"parallel.ranks={spec.gpus_per_node}",))
    if spec.ranks > 1:
        found.append(("parallel.ranks=1",))
    return found


def longer_parts(trace: Sequence[Path], on: Platform) -> tuple[tuple[str, float], ...]:
    """Parts of a traced step that take longer than the models say, the largest difference first."""
    from stepsight.prediction.traced.predict import predict_trace

    measured = predict_trace(trace, on, replay=True).breakdown_us
    models = predict_trace(trace, on, models_only=True).breakdown_us
    apart = {name: us - models.get(name, 0.0) for name, us in measured.items()}
    return tuple(sorted(((n, us) for n, us in apart.items() if us > 0), key=lambda one: -one[1]))
