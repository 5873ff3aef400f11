"""What people who train language models count in: tokens, FLOPs, the bubble, communication by axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from stepsight.hardware.spec import GpuSpec
from stepsight.prediction.llm.compose import Composed
from stepsight.prediction.memory import fit_probability
from stepsight.prediction.throughput import throughput
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


def figures(c: LanguageConfig, composed: Composed, gpu: GpuSpec) -> LanguageFigures:
    """The figures of a composed step."""
    rates = throughput(None, c.ranks, composed.step_us, LanguageWorkload(c).setup(), gpu)
    held = stage_memory(c)
    axes = dict.fromkeys(axis for stage in composed.stages for axis in stage.exposed)
    return LanguageFigures(
        parameters=c.model.parameters(),
        active_parameters=c.model.parameters(active=True),
        tokens_per_step=c.tokens_per_step,
        tokens_per_s=rates.tokens_per_s or 0.0,
        tokens_per_s_per_gpu=rates.tokens_per_s_per_gpu or 0.0,
        tflops_per_gpu=rates.tflops_per_gpu,
        mfu=rates.mfu,
        bubble=float(np.mean([stage.bubble_us for stage in composed.stages])) / composed.step_us,
        exposed_share={
            axis: float(np.mean([stage.exposed.get(axis, 0.0) for stage in composed.stages]))
            / composed.step_us
            for axis in axes
        },
        micro_batches=c.layout.micro_batches,
        stage_memory_bytes=tuple(_parts(one) for one in held),
        fit_probability=fit_probability(max(one.total for one in held), gpu.usable_bytes),
    )


def _parts(one: RankMemory) -> dict[str, float]:
    return {f.name: float(getattr(one, f.name)) for f in fields(one) if f.name not in UNUSED}
