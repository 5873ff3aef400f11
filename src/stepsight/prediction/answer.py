"""The answer: how long the step takes, why, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepsight.documents import write_whole
from stepsight.hardware.spec import GpuSpec
from stepsight.platform.conditions import check_axes
from stepsight.platform.load import Platform
from stepsight.prediction import display
from stepsight.prediction.breakdown import (
    HOST_SPREAD,
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
from stepsight.simulate.price import price
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, run

if TYPE_CHECKING:
    from stepsight.prediction.embedding import EmbeddingFigures
    from stepsight.prediction.language import LanguageFigures

METHOD_SPREAD = 0.04
"""What is left when every kernel is right: between the 3.00 % and 5.21 % that the published
method reports end to end (arXiv 2404.12674, METHOD §7)."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Prediction:
    """Step time with its interval, where it goes, and where it comes from.

    ``breakdown_us`` is what the devices did during the step, the mean over ranks; its parts
    add up to the step. ``sensitivities`` say what each part means for the step time. ``language``: tokens,
    FLOPs and the bubble of a language model's step. ``gpus`` is how many GPUs the
    platform has; the job may use fewer (``len(ranks)``).
    """

    platform: str
    step_us: float
    low_us: float
    high_us: float
    ranks: tuple[RankSummary, ...]
    breakdown_us: Mapping[str, float]
    naive_us: float
    sensitivities: tuple[Sensitivity, ...]
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
    gpu: GpuSpec | None = field(default=None, repr=False)
    gpus: int = 0
    price_per_gpu_hour: float | None = None
    carbon_g_per_kwh: float | None = None
    remedies: tuple[str, ...] = ()
    """Changes that were tried and make a job fit that does not, each as an option with what it gives."""

    def __repr__(self) -> str:
        return display.one_line(self)

    def _repr_html_(self) -> str:
        return display.as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that ``--json`` uses."""
        return document(self)

    def rows(self) -> list[dict[str, Any]]:
        """Where the step goes, largest part first: part, time_us, share, step_if_free_us."""
        return display.rows_of(self)

    def to_frame(self) -> Any:
        """`rows` as a pandas DataFrame."""
        return display.as_frame(self)

    def to_html(self) -> str:
        """The page that ``--html`` writes, as text."""
        from stepsight.report.prediction import page

        return page(self)

    def save_timeline(self, path: str | Path) -> None:
        """Write the timeline that ``--timeline`` writes, for Perfetto."""
        from stepsight.report.perfetto import chrome_trace

        write_whole(path, chrome_trace(self))

    def plot(self, axes: Any = None) -> Any:
        """A bar chart of where the step goes (needs matplotlib); gives the axes."""
        return display.plotted(self, axes)

    @property
    def step_time_us(self) -> float:
        """The step time under the name that it has in JSON."""
        return self.step_us

    @property
    def assumed(self) -> dict[str, Any]:
        """What the job is, as its description states or implies it, as in JSON; `setup` has it typed."""
        return _assumed(self)

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """`sensitivities` under the name that they have in JSON."""
        return self.sensitivities

    @property
    def exposed_communication_share(self) -> float:
        return self.exposed_communication_us / (self.step_us or 1.0)

    @property
    def throughput(self) -> Throughput:
        """samples/s, tokens/s, TFLOP/s per GPU, MFU."""
        priced = self.timeline.priced
        price = self.price_per_gpu_hour
        return throughput(priced.job, len(self.ranks), self.step_us, self.setup, self.gpu, price, priced.seen)

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
    return Prediction(
        platform=platform.name,
        step_us=timeline.step_us,
        low_us=timeline.step_us / factor,
        high_us=timeline.step_us * factor,
        ranks=ranks,
        breakdown_us=breakdown,
        naive_us=naive_us(timeline),
        sensitivities=sensitive,
        coverage=coverage(timeline),
        timeline=timeline,
        notes=tuple(f"{name}: {note}" for name, note in timeline.priced.notes.items()),
        gpu=platform.spec.gpu,
        gpus=platform.spec.ranks,
        price_per_gpu_hour=platform.spec.price_per_gpu_hour,
    )


def document(prediction: Prediction) -> dict[str, Any]:
    """Plain values, times in µs, ready for JSON."""
    result: dict[str, Any] = {
        "step_time_us": prediction.step_us,
        "low_us": prediction.low_us,
        "high_us": prediction.high_us,
        "workload": prediction.workload,
        "platform": prediction.platform,
        "assumed": prediction.assumed,
        "throughput": msgspec.to_builtins(prediction.throughput),
        "ranks": [msgspec.to_builtins(rank) for rank in prediction.ranks],
        "breakdown_us": dict(prediction.breakdown_us),
        "gpu_active_us": prediction.gpu_active_us,
        "exposed_communication_us": prediction.exposed_communication_us,
        "exposed_communication_share": prediction.exposed_communication_share,
        "imbalance": prediction.imbalance,
        "naive_us": prediction.naive_us,
        "sensitivity": [msgspec.to_builtins(s) for s in prediction.sensitivities],
        "coverage": msgspec.to_builtins(prediction.coverage),
        "notes": list(prediction.notes),
    }
    for name in ("energy", "language", "embedding"):
        if (part := getattr(prediction, name)) is not None:
            result[name] = msgspec.to_builtins(part)
    if prediction.memory:
        result["memory"] = {
            **memory_document(prediction.memory),
            "what_would_help": list(prediction.what_would_help),
        }
    if prediction.basis:
        result["basis"] = prediction.basis
    if prediction.origin is not None:
        result["traced_us"] = prediction.origin.step_us
        result["traced_platform"] = prediction.origin.platform
        if prediction.origin.timed_by is not None:
            result["timed_by"] = msgspec.to_builtins(prediction.origin.timed_by)
    if prediction.measured_us is not None:
        result["measured_us"] = prediction.measured_us
        result["error"] = prediction.step_us / prediction.measured_us - 1
    return result


def _assumed(prediction: Prediction) -> dict[str, Any]:
    """What the job is, as its description states or implies it; `Setup` explains the fields."""
    setup = prediction.setup
    stated: dict[str, Any] = {"ranks": len(prediction.ranks), "gpus": prediction.gpus}
    if setup is None:
        return stated
    named = {"batch": setup.samples, "tokens": setup.tokens, "sequence": setup.sequence}
    if setup.samples is not None:
        named["batch_per_replica"] = setup.samples / setup.replicas
    stated |= {name: value for name, value in named.items() if value is not None}
    if setup.default_batch:
        stated["default_batch"] = True
    return {
        **stated,
        "precision": setup.precision,
        "parallel": dict(setup.parallel),
        "details": list(setup.details),
        **({"framework": setup.framework} if setup.framework else {}),
        **({"recipe": setup.recipe, "differs": list(setup.differs)} if setup.recipe else {}),
    }


def memory_document(memory: MemoryLine) -> dict[str, Any]:
    """Bytes by part, the total against what is usable, whether that fits and how likely."""
    followed = {
        name: value
        for name in ("peak_active_bytes", "peak_reserved_bytes")
        if (value := getattr(memory, name)) is not None
    }
    return {
        "rank": memory.rank,
        **followed,
        "parts_bytes": dict(memory.parts_bytes),
        "total_bytes": memory.total_bytes,
        "reclaimable_bytes": memory.reclaimable_bytes,
        "usable_bytes": memory.usable_bytes,
        "excess_bytes": memory.excess_bytes,
        "fits": memory.fits,
        "fit_probability": memory.fit_probability,
    }
