"""Batched half-precision products from first principles: their bytes, their padded tiles, whole waves.

The serving tables hold single products; those of attention written out in eager mode are batched, narrow and
mostly bound by memory. Which kernel a library picks for them differs from chip to chip; the best it has does
not: constants read off products that A100's library serves well carry to GH200.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.stream_costs import meet

TILE = 128
"""Side of the output tiles of large products; a narrow output takes a tile of 32 or 64."""
NARROW = (32.0, 64.0)
STEP = 32
"""Elements of k that a thread block takes at a time."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares of memory bandwidth and of tensor-core peak that large batched products reach; start in µs."""

    memory: float
    matrix: float
    start_us: float


CONSTANTS = Constants(0.82, 0.74, 6.0)
"""Fitted by `fitting/kernels/batched.py` on A100's products with a long reduction (probabilities × values,
gradients of scores; Megatron's operators). With a short one A100's library takes up to twice as long."""
SPREAD = 0.14
"""Of A100's constants on GH200's four kinds of batched products, and for chips further away."""


def padded(side: FloatArray) -> FloatArray:
    """What whole tiles make of one side of the output."""
    whole = np.ceil(side / TILE) * TILE
    for narrow in reversed(NARROW):
        whole = np.where(side <= narrow, narrow, whole)
    return np.asarray(whole)


def batched_us(
    batch: Batch, spec: GpuSpec, share: float = 1.0, constants: Constants = CONSTANTS
) -> FloatArray:
    """The time from first principles. ``share``: what the board keeps up of its tensor cores' peak."""
    d = batch.dims
    outputs = d["batch"] * padded(d["m"]) * padded(d["n"])
    waves = outputs / (TILE * TILE * spec.sms)
    depth = np.ceil(d["k"] / STEP) * STEP
    peak = spec.peak_flops(batch.dtype) / 1e6 * share * constants.matrix
    matrix = 2 * outputs * depth / peak * np.ceil(waves) / waves
    memory = batch.bytes / (spec.memory_gbps * 1e3 * constants.memory)
    return np.asarray(constants.start_us + meet(memory, matrix))
