"""The answer: how long the step takes, why, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepsight.constants import area
from stepsight.documents import write_whole
from stepsight.hardware.spec import GpuSpec, PlatformSpec
from stepsight.platform.conditions import NOTHING_LEARNED, check_axes, without_effect
from stepsight.platform.load import Platform
from stepsight.prediction import display
from stepsight.prediction.breakdown import (
    EXPOSED,
    HOST,
    HOST_SPREAD,
    IDLE,
    Coverage,
    Origin,
    RankSummary,
    Sensitivity,
    coverage,
    naive_us,
    sensitivities,
    summarise,
)
from stepsight.prediction.memory import MemoryLine, what_would_help
from stepsight.prediction.throughput import Energy, Throughput, energy, throughput
from stepsight.program.job import Job
from stepsight.program.observation import Observations
from stepsight.program.setup import Setup
from stepsight.simulate.price import COMMUNICATION, price
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, run

if TYPE_CHECKING:
    from stepsight.prediction.embedding import EmbeddingFigures
    from stepsight.prediction.language import LanguageFigures

C = area("prediction")

METHOD_SPREAD = C.METHOD_SPREAD
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Prediction:
    """Step time with its interval, where it goes, and where it comes from.

    ``breakdown_us`` is what the devices did during the step, the mean over ranks; its parts
    add up to the step. ``sensitivity`` says what each part means for the step time. ``language``: tokens,
    FLOPs and the bubble of a language model's step. ``spec`` is the platform, of which the job may use
    fewer GPUs (``len(ranks)``).
    """

    platform: str
    step_time_us: float
    low_us: float
    high_us: float
    ranks: tuple[RankSummary, ...]
    breakdown_us: Mapping[str, float]
    naive_us: float
    sensitivity: tuple[Sensitivity, ...]
    coverage: Coverage
    timeline: Timeline = field(repr=False)
    workload: str = ""
    memory: MemoryLine | None = None
    measured_us: float | None = None
    notes: tuple[str, ...] = ()
    language: LanguageFigures | None = None
    embedding: EmbeddingFigures | None = field(default=None, repr=False)
    """Of a recommender model on GPUs: what each table and each rank costs."""
    basis: str = ""
    """Of a trace: "anchored" on its measured times, by "models" alone, or "replay"; else empty."""
    origin: Origin | None = None
    """Of a trace: what the traced machine took, which may be another one than the platform."""
    setup: Setup | None = None
    spec: PlatformSpec | None = field(default=None, repr=False)
    carbon_g_per_kwh: float | None = None
    remedies: tuple[str, ...] = ()
    """Changes that were tried and make a job fit that does not, each as an option with what it gives."""

    @property
    def gpu(self) -> GpuSpec | None:
        return self.spec.gpu if self.spec else None

    @property
    def gpus(self) -> int:
        """How many GPUs the platform has."""
        return self.spec.ranks if self.spec else 0

    @property
    def price_per_gpu_hour(self) -> float | None:
        return self.spec.price_per_gpu_hour if self.spec else None

    def __repr__(self) -> str:
        return display.one_line(self)

    def _repr_html_(self) -> str:
        return display.as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that ``--json`` uses, times in µs."""
        names = (
            "step_time_us", "low_us", "high_us", "workload", "platform", "assumed", "throughput", "ranks",
            "breakdown_us", "gpu_active_us", "exposed_communication_us", "exposed_communication_share",
            "imbalance", "naive_us", "sensitivity", "coverage", "notes",
        )  # fmt: skip
        where_known = ("energy", "language", "embedding")
        found = {name: getattr(self, name) for name in names}
        found |= {name: part for name in where_known if (part := getattr(self, name)) is not None}
        if self.memory:
            found["memory"] = self.memory.to_dict() | {"what_would_help": self.what_would_help}
        if self.basis:
            found["basis"] = self.basis
        if self.origin is not None:
            found |= {"traced_us": self.origin.step_us, "traced_platform": self.origin.platform}
            if self.origin.timed_by is not None:
                found["timed_by"] = self.origin.timed_by
        if self.measured_us is not None:
            found |= {"measured_us": self.measured_us, "error": self.step_time_us / self.measured_us - 1}
        return {name: msgspec.to_builtins(value) for name, value in found.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Where the step goes, largest part first: part, time_us, share, step_if_free_us."""
        free = {s.category: s.if_free_us for s in self.sensitivity}
        stands_for = {EXPOSED: COMMUNICATION, IDLE: HOST}
        whole = sum(self.breakdown_us.values()) or 1.0
        return [
            {"part": n, "time_us": us, "share": us / whole, "step_if_free_us": free.get(stands_for.get(n, n))}
            for n, us in sorted(self.breakdown_us.items(), key=lambda item: -item[1])
        ]

    def to_html(self) -> str:
        """The page that ``--html`` writes, as text."""
        from stepsight.report.prediction import page

        return page(self)

    def save_timeline(self, path: str | Path) -> None:
        """Write the timeline that ``--timeline`` writes, for Perfetto."""
        from stepsight.report.perfetto import chrome_trace

        write_whole(path, chrome_trace(self))

    @property
    def assumed(self) -> dict[str, Any]:
        """What the job is, as its description states or implies it, as in JSON; `setup` has it typed."""
        found: dict[str, Any] = {"ranks": len(self.ranks), "gpus": self.gpus}
        setup = self.setup
        if setup is None:
            return found
        each = None if setup.samples is None else setup.samples / setup.replicas
        where_known = {
            "batch": setup.samples, "tokens": setup.tokens, "sequence": setup.sequence,
            "batch_per_replica": each, "default_batch": setup.default_batch or None,
            "framework": setup.framework or None, "recipe": setup.recipe or None,
            "differs": list(setup.differs) if setup.recipe else None,
        }  # fmt: skip
        found |= {name: value for name, value in where_known.items() if value is not None}
        parallel, details = dict(setup.parallel), list(setup.details)
        return found | {"precision": setup.precision, "parallel": parallel, "details": details}

    @property
    def exposed_communication_share(self) -> float:
        return self.exposed_communication_us / (self.step_time_us or 1.0)

    @property
    def throughput(self) -> Throughput:
        """samples/s, tokens/s, TFLOP/s per GPU, MFU."""
        priced = self.timeline.priced
        price = self.price_per_gpu_hour
        return throughput(
            priced.job, len(self.ranks), self.step_time_us, self.setup, self.gpu, price, priced.seen
        )

    @property
    def energy(self) -> Energy | None:
        """J and Wh per step and per token, average power, sustained clock; None where power is not known."""
        return energy(self)

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank more likely than not fits into its GPU; None where memory is not known."""
        return None if self.memory is None else self.memory.fits

    @property
    def what_would_help(self) -> tuple[str, ...]:
        """What would make a job fit that does not: changes that were tried, else what has the room."""
        if self.memory is None or self.remedies:
            return self.remedies
        return what_would_help(self.memory, self.gpu)

    @property
    def exposed_communication_us(self) -> float:
        """Communication that no compute covers, the mean over ranks."""
        return float(np.mean([r.exposed_communication_us for r in self.ranks]))

    @property
    def gpu_active_us(self) -> float:
        return float(np.mean([r.gpu_active_us for r in self.ranks]))

    @property
    def imbalance(self) -> float:
        """The busiest rank's compute over the mean, less one."""
        compute = np.array([r.compute_us for r in self.ranks])
        return max(0.0, float(compute.max() / compute.mean() - 1)) if compute.mean() > 0 else 0.0


def predict_job(
    job: Job, platform: Platform, *, replay: Iterable[str] = (), steps: int = STEADY_STEPS,
    host_spread: float = HOST_SPREAD, method_spread: float = METHOD_SPREAD, seen: Observations = (),
) -> Prediction:  # fmt: skip
    """Predict one step of a job on a platform; ``seen`` is what a trace measured of the job.

    What is known of the job beyond its operators (name, setup, memory, notes) is the caller's to add.
    """
    platform = platform.with_ranks(job.ranks)
    check_axes(platform.site, job.groups, f"platform {platform.name}")
    timeline = run(price(job, platform, replay, seen=seen), platform, steps=steps)
    return explain(timeline, platform, steps=steps, host_spread=host_spread, method_spread=method_spread)


def explain(
    timeline: Timeline, platform: Platform, *, steps: int = STEADY_STEPS, host_spread: float = HOST_SPREAD,
    method_spread: float = METHOD_SPREAD, sensitive: tuple[Sensitivity, ...] = (),
    interval_factor: float | None = None,
) -> Prediction:  # fmt: skip
    """The answer that a timeline holds: its figures, where they come from and how far to trust them.

    ``host_spread`` says how far host times may be off, ``method_spread`` the step beyond what its parts
    explain. ``sensitive`` and ``interval_factor`` (of the 90 % interval) are found here unless given.
    """
    ranks, breakdown = summarise(timeline)
    sensitive = sensitive or sensitivities(timeline, platform, steps=steps, host_spread=host_spread)
    method = max(method_spread, platform.rehearsal_spread)
    sigma = np.sqrt(method**2 + sum(s.step_spread**2 for s in sensitive))
    factor = interval_factor or float(np.exp(INTERVAL_SIGMAS * sigma))
    ops = timeline.priced.job.distinct_ops() if platform.learned is not NOTHING_LEARNED else []
    unused = without_effect(platform.learned, {k.family for op in ops for k in op.kernels}) if ops else ()
    return Prediction(
        platform=platform.name,
        step_time_us=timeline.step_us,
        low_us=timeline.step_us / factor,
        high_us=timeline.step_us * factor,
        ranks=ranks,
        breakdown_us=breakdown,
        naive_us=naive_us(timeline),
        sensitivity=sensitive,
        coverage=coverage(timeline),
        timeline=timeline,
        notes=(*unused, *(f"{name}: {note}" for name, note in timeline.priced.notes.items())),
        spec=platform.spec,
    )
