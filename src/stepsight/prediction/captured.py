"""Predict a captured step: its job on a platform, its memory against what the GPU has."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from stepsight.capture.step.captured import CapturedStep, RankMemoryUse
from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction, predict_job
from stepsight.prediction.memory import MemoryLine
from stepsight.prediction.summary import RankSummary
from stepsight.prediction.throughput import job_flops
from stepsight.program.job import Job
from stepsight.program.setup import Setup
from stepsight.simulate.timeline import STEADY_STEPS
from stepsight.workload.memory import CONTEXT_BYTES


@dataclass(frozen=True, slots=True)
class CapturedOn:
    """A captured step on a platform, as what-if questions change it."""

    step: CapturedStep
    job: Job
    platform: Platform
    measured_us: float | None = None

    @classmethod
    def of(cls, step: CapturedStep, platform: Platform) -> CapturedOn:
        return cls(step, step.job, platform)

    def on(self, platform: Platform) -> CapturedOn:
        return replace(self, platform=platform)

    def predicted(self) -> Prediction:
        return predict_captured(replace(self.step, job=self.job), self.platform)


def predict_captured(step: CapturedStep, platform: Platform, *, steps: int = STEADY_STEPS) -> Prediction:
    """The time of one optimizer step, with the capture's notes."""
    memory = _memory(step.fullest, platform) if step.fullest else None
    made = predict_job(
        step.job, platform, workload=step.name, steps=steps, memory=memory, notes=_notes(step, platform),
        setup=_setup(step),
    )  # fmt: skip
    return _each(made, step.steps) if step.steps > 1 else made


def _setup(step: CapturedStep) -> Setup:
    """What one step trains, as far as the capture knows."""
    seen = step.samples
    count = seen.count / step.steps
    replicas = (("data", step.ranks),) if step.ranks > 1 and seen.count and not seen.stated else ()
    return Setup(
        samples=count or None, tokens=count * seen.length or None, sequence=seen.length or None,
        parallel=replicas, sample_kind=seen.kind,
    )  # fmt: skip


def _notes(step: CapturedStep, platform: Platform) -> tuple[str, ...]:
    notes = step.all_notes()
    if step.gpu and step.gpu != platform.spec.gpu.name:
        notes = (*notes, f"captured for {step.gpu}: kernels are those the script chose for that GPU")
    return notes


def _memory(use: RankMemoryUse, platform: Platform) -> MemoryLine:
    """What is active at the peak, what the allocator holds besides, and the process's context."""
    parts = {name: float(value) for name, value in use.parts_bytes.items()}
    parts["cached_by_allocator"] = max(use.peak_reserved_bytes - sum(parts.values()), 0.0)
    parts["context"] = CONTEXT_BYTES
    parts = {name: platform.learned.memory * value for name, value in parts.items()}
    return MemoryLine(
        parts,
        platform.spec.gpu.usable_bytes,
        use.rank,
        use.peak_active_bytes,
        use.peak_reserved_bytes,
        use.at,
    )


def _each(made: Prediction, steps: int) -> Prediction:
    """Of several recorded steps the mean one."""
    return replace(
        made, step_us=made.step_us / steps, low_us=made.low_us / steps, high_us=made.high_us / steps,
        naive_us=made.naive_us / steps, ranks=tuple(_scaled(r, steps) for r in made.ranks),
        breakdown_us={name: us / steps for name, us in made.breakdown_us.items()},
        notes=(*made.notes, f"the mean of {steps} steps"),
        setup=replace(
            made.setup or Setup(),
            model_flops=sum(job_flops(made.timeline.priced.job).values()) / steps,
        ),
    )  # fmt: skip


def _scaled(rank: RankSummary, steps: int) -> RankSummary:
    times = {f.name: getattr(rank, f.name) / steps for f in fields(rank) if f.name.endswith("_us")}
    return replace(rank, **times)
