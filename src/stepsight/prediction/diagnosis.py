"""``stepsight.diagnose``: a measured step against its prediction, and likely reasons for the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from stepsight.capturing.step import CapturedStep
from stepsight.constants import area
from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.learn.response import AskedStep, JobFile, ask, interval_spread
from stepsight.prediction.measured import PER_GPU, Figure, check_peak, parse_figure, parse_log
from stepsight.prediction.memory import fits
from stepsight.prediction.predict import predict
from stepsight.prediction.suspects import DATA_LOADER, FASTER_THAN_NOISE, Suspect, suspects
from stepsight.workload.files import Workload

C = area("prediction")

MOST_SUSPECTS, UNLIKELY = 6, 0.03
USUAL, SLOW, FAST = "as expected", "slower than expected", "faster than expected"


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
    """The same job with other settings; ``steps_us`` are what the first two suspects would give."""

    assignments: tuple[str, ...]
    usual_us: float
    steps_us: tuple[float, float]


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """``percentile``: the share of such runs that are predicted to be at most as slow as the measured one.

    ``longer`` are parts of a traced step, by how much longer than predicted each is, in µs.
    """

    prediction: Prediction
    measured_us: float
    percentile: float
    verdict: str
    suspects: tuple[Explanation, ...]
    tell_apart: Variant | None = None
    data_us: float | None = None
    memory_bytes: float | None = None
    longer: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Diagnosis {self.prediction.workload}: {self.verdict}>"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "workload": self.prediction.workload,
            "platform": self.prediction.platform,
            "expected_us": self.prediction.step_time_us,
            "low_us": self.prediction.low_us,
            "high_us": self.prediction.high_us,
            "measured_us": self.measured_us,
            "percentile": self.percentile,
            "verdict": self.verdict,
            "suspects": [asdict(suspect) for suspect in self.suspects],
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
    """One measured variant of the job, with the steps that suspects would give it."""

    step_us: float
    measured_us: float
    suspects: Mapping[str, Suspect]


@dataclass(frozen=True, slots=True)
class Examined:
    """A job on its platform, priced with everything that could make it slower; many measurements may be held
    against it."""

    job: JobFile
    on: Platform
    prediction: Prediction
    _variants: dict[tuple[str, ...], tuple[AskedStep, Mapping[str, Suspect]]] = field(default_factory=dict)

    @classmethod
    def of(cls, workload: str | Path, on: Platform, assignments: Sequence[str] = ()) -> Examined:
        job = JobFile(workload, tuple(assignments)).on(on)
        return cls(job, on, predict(job.load(), on))

    def variant(self, *more: str) -> tuple[AskedStep, Mapping[str, Suspect]]:
        """The job with other settings, and its suspects; without any, on the scale of the prediction."""
        if more not in self._variants:
            job = self.job.changed(*more) if more else self.job
            asked = ask(job.load(), self.on)
            usual_us = asked.step_us if more else self.prediction.step_time_us
            self._variants[more] = asked, suspects(job, asked, usual_us, self.on)
        return self._variants[more]

    def explain(
        self, figure: Figure, *, data_us: float = 0.0, memory_gb: float | None = None,
        also: Sequence[tuple[Sequence[str], str]] = (), trace: Sequence[Path] = (),
    ) -> Diagnosis:  # fmt: skip
        """Why the step takes as long as it was measured to."""
        p = self.prediction
        whole_us = figure.step_us(p.throughput, p.step_time_us)
        check_peak(whole_us, p.throughput, p.step_time_us, f"--measured {figure.text}", figure.kind)
        found: tuple[Explanation, ...] = ()
        if whole_us > p.step_time_us:
            _, own = self.variant()
            first = _Observation(p.step_time_us, max(whole_us - data_us, 1e-3), own)
            found = _ranked(first, [self._observed(more, text) for more, text in also], data_us, whole_us)
        inside = p.low_us <= whole_us <= p.high_us
        verdict = USUAL if inside else SLOW if whole_us > p.step_time_us else FAST
        spread = interval_spread(p.low_us, p.high_us)
        return Diagnosis(
            p, whole_us, NormalDist().cdf(math.log(whole_us / p.step_time_us) / spread), verdict, found,
            None if also else _tell_apart(self, found), data_us or None,
            memory_gb * 1e9 if memory_gb else None, longer_parts(trace, self.on) if trace else (),
            (*_other_count(figure, p), *_notes(p, memory_gb, verdict)),
        )  # fmt: skip

    def _observed(self, more: Sequence[str], measured: str) -> _Observation:
        asked, its = self.variant(*more)
        return _Observation(asked.step_us, parse_figure(measured).step_us(asked.rates, asked.step_us), its)


def diagnose(
    workload: str | Path, platform: Platform | str | Path, measured: str | None = None, *,
    log: str | None = None, data: str | None = None, memory_gb: float | None = None,
    also: Sequence[tuple[Sequence[str], str]] = (), trace: Sequence[Path] = (),
    assignments: Sequence[str] = (), overrides: Sequence[str] = (),
) -> Diagnosis:  # fmt: skip
    """Why a step takes as long as it was measured to.

    ``measured`` is a figure with its unit (``812ms``, ``41k tokens/s``, ``38% MFU``); ``log`` a line that
    states one. ``data`` is the time per step that the loop waits for data. ``also`` are measurements of the
    same job with other settings, each with its assignments.

    >>> diagnose("llama3-8b", "8xH100-SXM", "812ms").suspects[0].name  # doctest: +SKIP
    """
    on = platform if isinstance(platform, Platform) else load_platform(platform, overrides)
    figure = parse_log(log) if log else parse_figure(measured or "")
    waited = parse_figure(data) if data else None
    if waited and waited.kind != "time":
        raise InputError(f"--data-time {data}", "is not a time", "write it as 40ms")
    data_us = waited.value if waited else 0.0
    examined = Examined.of(workload, on, assignments)
    return examined.explain(figure, data_us=data_us, memory_gb=memory_gb, also=also, trace=trace)


def _other_count(figure: Figure, p: Prediction) -> list[str]:
    """A rate that would be as predicted if it counted one GPU instead of all of them, or the reverse."""
    whole = figure.kind.removesuffix(PER_GPU)
    if whole not in ("tokens_per_s", "samples_per_s"):
        return []
    other = replace(figure, kind=whole if figure.kind != whole else whole + PER_GPU)
    inside = [p.low_us <= one.step_us(p.throughput, p.step_time_us) <= p.high_us for one in (figure, other)]
    if inside != [False, True]:
        return []
    unit = f"{whole.removesuffix('_per_s')}/s" + ("/gpu" if other.kind != whole else "")
    of = "each GPU" if other.kind != whole else "all GPUs together"
    return [f"{figure.value:,.0f} {unit} would be as expected: write {unit} if the figure counts {of}"]


def _notes(prediction: Prediction, memory_gb: float | None, verdict: str) -> list[str]:
    notes = []
    if memory_gb and prediction.memory:
        predicted_gb = prediction.memory.total_bytes / 1e9
        ratio = memory_gb / predicted_gb
        if abs(math.log(ratio)) > C.MEMORY_NOISE:
            notes.append(
                f"memory is {ratio:.2f} times the predicted {predicted_gb:.1f} GB: the run keeps"
                f" {'more' if ratio > 1 else 'less'} than described (batch, recomputation, sharding)"
            )
    if verdict == FAST:
        notes.append(
            "check batch, sequence, recomputation and precision of the description, or learn the machine with"
            " `stepsight calibrate --runs`"
        )
    return notes


def _ranked(
    first: _Observation, others: Sequence[_Observation], data_us: float, whole_us: float
) -> tuple[Explanation, ...]:
    """Suspects by how well they explain all measurements together."""
    found = []
    for name, suspect in first.suspects.items():
        if name == DATA_LOADER and (others or data_us):
            continue
        logs = suspect.log_density(first.measured_us, C.RANKING_SPREAD)
        for other in others:
            its = other.suspects.get(name)
            steps = its.steps_us if its else np.full(len(suspect.steps_us), other.step_us)
            logs = logs - 0.5 * (np.log(other.measured_us / steps) / C.RANKING_SPREAD) ** 2
        best = int(np.argmax(logs))
        weight = math.log(suspect.prior * np.exp(logs - logs.max()).sum()) + float(logs.max())
        severity = float(suspect.severities[best])
        step_us = float(suspect.steps_us[best]) + data_us
        found.append(Explanation(name, weight, severity, step_us, suspect.change(severity), suspect.check))
    if data_us > FASTER_THAN_NOISE * whole_us:
        found.append(_waited(first, data_us, whole_us, max((e.probability for e in found), default=0.0)))
    if not found:
        return ()
    top = max(e.probability for e in found)
    total = sum(math.exp(e.probability - top) for e in found)
    ranked = sorted(found, key=lambda e: -e.probability)[:MOST_SUSPECTS]
    return tuple(replace(e, probability=math.exp(e.probability - top) / total) for e in ranked)


def _waited(first: _Observation, data_us: float, whole_us: float, likeliest: float) -> Explanation:
    """A measured wait for data: as likely as the share of the difference that it explains."""
    explains = min(data_us / max(whole_us - first.step_us, 1e-9), 1.0)
    return Explanation(
        DATA_LOADER, likeliest + math.log(explains / (1.0 - min(explains, 0.99))),
        1 + data_us / first.step_us, first.step_us + data_us,
        f"{data_us / 1e3:.1f} ms of waiting for data per step, as measured",
        "more workers, pinned memory, or a step on a batch that stays on the GPU",
    )  # fmt: skip


def _tell_apart(examined: Examined, found: Sequence[Explanation]) -> Variant | None:
    """The variant of the job, among those that fit, on which the likely suspects differ most."""
    likely = [one for one in found if one.probability > UNLIKELY]
    job = examined.job.load()
    if len(likely) < 2 or isinstance(job, CapturedStep):
        return None
    weights = np.array([one.probability for one in likely])
    best: tuple[float, Variant] | None = None
    for more in _variants(job, examined.on):
        try:
            asked, its = examined.variant(*more)
        except StepsightError:
            continue
        held = examined.on.learned.memory * (asked.memory_bytes or 0.0)
        if not fits(held, examined.on.spec.gpu.usable_bytes):
            continue
        steps = [its[s.name].at(s.severity) if s.name in its else asked.step_us for s in likely]
        logs = np.log(np.array(steps))
        apart = math.sqrt(float(np.average((logs - np.average(logs, weights=weights)) ** 2, weights=weights)))
        if best is None or apart > best[0]:
            best = (apart, Variant(more, asked.step_us, (steps[0], steps[1])))
    return best[1] if best and best[0] > C.RANKING_SPREAD else None


def _variants(job: Workload, on: Platform) -> list[tuple[str, ...]]:
    """Cheap measurements of the same job: another batch, one node, one GPU."""
    config = getattr(job, "config", None)
    found: list[tuple[str, ...]] = []
    for name in ("batch", "batch_per_rank"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            found += [(f"{name}={2 * value}",), (f"{name}={max(value // 2, 1)}",)]
    if on.spec.nodes > 1:
        found.append((f"parallel.ranks={on.spec.gpus_per_node}",))
    if on.spec.ranks > 1:
        found.append(("parallel.ranks=1",))
    return found


def longer_parts(trace: Sequence[Path], on: Platform) -> tuple[tuple[str, float], ...]:
    """Parts of a traced step that take longer than the models say, the largest difference first."""
    from stepsight.prediction.traced.predict import predict_trace

    measured = predict_trace(trace, replay=True).breakdown_us
    models = predict_trace(trace, on, models_only=True).breakdown_us
    apart = {name: us - models.get(name, 0.0) for name, us in measured.items()}
    return tuple(sorted(((n, us) for n, us in apart.items() if us > 0), key=lambda one: -one[1]))
