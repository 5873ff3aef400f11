"""What people who train language models count in: tokens, FLOPs, the bubble, communication by axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from stepsight.hardware.spec import GpuSpec
from stepsight.prediction.breakdown import EXPOSED, exposed_by_group, summarise
from stepsight.prediction.llm.answer import AXES
from stepsight.prediction.memory import fit_probability
from stepsight.prediction.throughput import throughput
from stepsight.simulate.blocks import PIPELINE
from stepsight.simulate.timeline import Timeline
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.memory import stage_memory
from stepsight.workload.llm.workload import LanguageWorkload
from stepsight.workload.memory import RankMemory

UNUSED = ("tables", "followed")
"""Fields of a rank's memory that say nothing about a language model."""


@dataclass(frozen=True, slots=True)
class LanguageFigures:
    """A step in the field's words.

    Rates and ``mfu`` are those of `Throughput`; the model's FLOPs are 6 a parameter and token, 4 where it is
    frozen, and attention over the whole sequence; nothing run again counts.
    ``bubble`` is the share of the step in which a stage waits for others, the mean over stages;
    ``exposed_share`` that of communication not covered by compute, by axis of parallelism.
    ``stage_memory_bytes`` is what a rank of each stage holds at its fullest, by part; ``fit_probability`` how
    likely the fullest one fits into its GPU.
    """

    parameters: int
    active_parameters: int
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    bubble: float
    exposed_share: Mapping[str, float]
    micro_batches: int
    stage_memory_bytes: tuple[Mapping[str, float], ...] = ()
    fit_probability: float = 1.0


def figures(c: LanguageConfig, timeline: Timeline, gpu: GpuSpec) -> LanguageFigures:
    """The figures of a walked step."""
    rates = throughput(None, c.ranks, timeline.step_us, LanguageWorkload(c).setup(), gpu)
    held = stage_memory(c)
    axes, waiting = exposed_by_axis(timeline)
    return LanguageFigures(
        parameters=c.model.parameters(),
        active_parameters=c.model.parameters(active=True),
        tokens_per_step=c.tokens_per_step,
        tokens_per_s=rates.tokens_per_s or 0.0,
        tokens_per_s_per_gpu=rates.tokens_per_s_per_gpu or 0.0,
        tflops_per_gpu=rates.tflops_per_gpu,
        mfu=rates.mfu,
        bubble=waiting / timeline.step_us,
        exposed_share={axis: us / timeline.step_us for axis, us in axes.items()},
        micro_batches=c.layout.micro_batches,
        stage_memory_bytes=tuple(_parts(one) for one in held),
        fit_probability=fit_probability(max(one.total for one in held), gpu.usable_bytes),
    )


def exposed_by_axis(timeline: Timeline) -> tuple[dict[str, float], float]:
    """Exposed communication by axis of parallelism, and waiting for other ranks; µs, the mean over ranks."""
    groups, waiting = exposed_by_group(timeline)
    axes: dict[str, float] = {}
    for group, us in groups.items():
        axis = group if group in AXES else PIPELINE
        axes[axis] = axes.get(axis, 0.0) + us
    return axes, waiting


def parts_us(timeline: Timeline) -> dict[str, float]:
    """Where the step goes, the mean over ranks: compute by category, ``exposed AXIS``, waiting and idle."""
    parts = summarise(timeline)[1]
    parts.pop(EXPOSED, None)
    return parts | {f"exposed {axis}": us for axis, us in exposed_by_axis(timeline)[0].items()}


def _parts(one: RankMemory) -> dict[str, float]:
    return {f.name: float(getattr(one, f.name)) for f in fields(one) if f.name not in UNUSED}
