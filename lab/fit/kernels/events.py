"""What CUDA events around an operator read, against the time of its kernel (`EventPath`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import EventPath, LearnedModel
from stepsight.kernels.machine import Machine
from stepsight.kernels.models import KernelModels
from stepsight.kernels.streams import Streamed

SPLIT_TILE = 128
"""Side of the output tiles by which a product's thread blocks are counted."""


def output_tiles(dims: Mapping[str, FloatArray]) -> FloatArray:
    """Thread blocks of a product, one for each tile of its output."""
    tiles = np.ceil(dims["m"] / SPLIT_TILE) * np.ceil(dims["n"] / SPLIT_TILE) * np.maximum(dims["batch"], 1.0)
    return np.asarray(tiles)


def path_reading_us(
    path: EventPath, kernel_us: FloatArray, dims: Mapping[str, FloatArray], sms: int
) -> FloatArray:
    """What the events would read around kernels that take ``kernel_us``."""
    second: FloatArray = np.zeros(len(kernel_us))
    if path.second_us and "k" in dims:  # products that are split along k launch a second kernel
        deepest = path.split_depth + path.split_slope * output_tiles(dims) / sms
        second = np.where(dims["k"] > deepest, path.second_us, 0.0)
    return np.maximum(path.stretch * kernel_us + path.added_us, path.floor_us + second)


def model_reading_us(model: LearnedModel, batch: Batch, kernel_us: FloatArray) -> FloatArray:
    """The same for a model's kernels, as in the table that was fitted."""
    return path_reading_us(model.path, kernel_us, batch.dims, model.machine.sms)


def reading_us(
    models: KernelModels, batch: Batch, kernel_us: FloatArray, *, as_tabled: bool = True
) -> FloatArray:
    """The same by the models that answer for a GPU; ``as_tabled``: on the board of the table, else on one at
    its usual clocks."""
    reading: FloatArray = kernel_us.copy()
    mine = Machine.of(models.spec, "fp32")
    stream = min(models.streams, key=lambda s: s.machine.distance(mine), default=None)
    gemm = batch.family == "gemm"
    many = batch.dims["batch"] > 1 if gemm else np.zeros(len(batch), dtype=bool)
    many = many | batch.where(lambda kind: gemm and kind.variant == "bmm")
    for batched in (False, True):
        rows = np.nonzero(many == batched)[0]
        variant = ("bmm" if batched else "linear") if gemm else ""
        chosen = models.fitted.choice(batch.family, batch.dtype, variant) if len(rows) else None
        if chosen is not None:
            model = chosen.models[0]
            path = model.path if as_tabled else replace(model.path, stretch=1.0)
            dims = batch.take(rows).dims
            reading[rows] = path_reading_us(path, kernel_us[rows], dims, model.machine.sms)
        elif len(rows) and stream is not None:
            for operator, part in batch.take(rows).by_variant(lambda variant: True):
                reading[rows[part]] += _added_us(stream, operator)
    return reading


def _added_us(stream: Streamed, op: str) -> float:
    """What events add to an element-wise op; the median for one that was not measured."""
    if op in stream.path:
        return stream.path[op].added_us
    return float(np.median([path.added_us for path in stream.path.values()]))
