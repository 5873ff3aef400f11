"""The least a configuration can take: its products at the GPU's peak, and the pipeline's bubble.

No prediction lies below it, so a configuration whose bound is above what is already found cannot be better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsight.errors import StepsightError
from stepsight.hardware.spec import GpuSpec
from stepsight.tune.evaluate import with_settings
from stepsight.tune.trial import Setting
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload

FLOPS = 6
"""Of a parameter and token: two forward, four backward."""
AGAIN = 2
"""More, where layers are run again."""


def bound_us(document: Mapping[str, Any], settings: Mapping[str, Setting], gpu: GpuSpec, where: str) -> float:
    """A lower bound of the step; zero where nothing is known about the workload."""
    try:
        workload = parse_workload(with_settings(document, settings, where), where)
    except StepsightError:
        return 0.0
    return language_bound_us(workload.config, gpu) if isinstance(workload, LanguageWorkload) else 0.0


def language_bound_us(c: LanguageConfig, gpu: GpuSpec) -> float:
    """Layers only: the vocabulary's ends are looked up, tied or uneven, and left out."""
    s = c.layout
    layers = max(0, c.model.parameters(active=True) - 2 * c.model.vocab * c.model.hidden)
    flops = FLOPS + (AGAIN if c.training.recompute == "full" and not c.training.recompute_layers else 0)
    dtype = c.training.product_dtype
    stage_us = 1e6 * flops * layers * c.tokens_per_step / c.ranks / gpu.peak_flops(dtype)
    return stage_us * (s.micro_batches + _bubble(c)) / s.micro_batches


def _bubble(c: LanguageConfig) -> float:
    """Micro-batches for which the fullest stage waits: the first to come through and the last to go back."""
    s = c.layout
    if s.schedule == "zero_bubble":
        return 0.0
    return (s.pipeline - 1) / s.virtual_stages
