"""fp32 convolutions of the tables left out by size and by GPU.

Layers with many channels are timed by a fit on those with few, with the recipe of what ships; a GPU by the
models of the others. Wide ResNets (`resnet_layers`) are the source that no table saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.fit.kernels.recipes import event_model
from lab.fit.kernels.sources import Measured
from lab.score.kernels.judged import Judged, judge
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.model import shipped_models
from stepsight.kernels.machine import Machine
from stepsight.kernels.models import KernelModels
from stepsight.score import Score

SMALL_CHANNELS = 1024
"""Convolutions are fitted on as many channels and asked about more."""


def size_scores(convolutions: Sequence[Measured]) -> list[Score]:
    """Layers with many channels by fits on those with few."""
    return [judged.score() for judged in map(_by_small, convolutions) if judged is not None]


def gpu_scores(convolutions: Sequence[Measured]) -> list[Score]:
    """Each GPU timed by the models of the others."""
    parts = [judged for judged in map(_by_others, convolutions) if judged is not None]
    if not parts:
        return []
    together = Judged.pooled("GPU left out: conv fp32, all", parts, f"all rows of {len(parts)} lines")
    return [*(part.score() for part in parts), together.score()]


def _by_small(part: Measured) -> Judged | None:
    d, spec = part.batch.dims, load_gpu(part.gpu)
    large = np.asarray(np.maximum(d["c_in"], d["c_out"]) > SMALL_CHANNELS)
    shipped = [m for m in shipped_models() if (m.machine.name, m.family) == (spec.name, "conv")]
    if large.all() or not large.any() or not shipped:
        return None
    model = event_model(replace(part, held_out=large), Machine.of(spec, "fp32"), 0.0)
    models = KernelModels(spec, (replace(model, spread=shipped[0].spread),))
    used = f"fitted on channels ≤ {SMALL_CHANNELS}, scored beyond"
    kind = "sizes left out: conv fp32"
    return judge(part, large, models, f"{kind} {part.gpu}", used, kind)


def _by_others(part: Measured) -> Judged | None:
    models = KernelModels.for_gpu(load_gpu(part.gpu))
    mine = Machine.of(models.spec, "fp32")
    strangers = tuple(m for m in models.shipped if not m.machine.same_chip(mine))
    blind = KernelModels(models.spec, strangers, models.streams, boards=models.boards)
    every = np.ones(len(part.time_us), dtype=bool)
    kind = "GPU left out: conv fp32"
    return judge(part, every, blind, f"{kind} {part.gpu}", "all shapes", kind)
