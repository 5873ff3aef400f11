"""Image gradients by cuDNN's plain engine (``dgrad_engine``), which it takes in fp32 where nobody benchmarks.

The engine multiplies weights and gradient image by image: a block makes 64 channels under a tap for 32
pixels of one image, so that small images fill their last tile badly (7×7 pixels take two tiles of 32). The
result of every tap is added to the image. A trace names the kernel; descriptions do not, and are timed by the
fastest algorithm, as with ``torch.backends.cudnn.benchmark``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import conv_output
from stepsight.kernels.roofline import KERNEL_FLOOR_US
from stepsight.program.variants import DGRAD_ENGINE

CHANNELS, PIXELS = 64, 32
"""Sides of a block's tile: the binary logarithms 6 and 5 among the parameters in the kernel's name."""
SHARE = 0.70
"""Of the fp32 peak: six layers of ResNet-50 on V100, 0.61 to 0.79 (a trace of 2023 with torch 2)."""
UPDATED_BYTES = 8
"""Every value is added to the image: read and written in fp32."""
SPREAD = 0.12
NOTE = "cuDNN's plain engine, image by image"


def is_plain_engine(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which image gradients a trace shows to be the plain engine's."""
    if batch.family != "conv_dgrad" or batch.dtype != "fp32":
        return np.zeros(len(batch), dtype=bool)
    return batch.where(lambda kind: kind.variant == DGRAD_ENGINE)


def engine_estimates(batch: Batch, spec: GpuSpec) -> Estimates:
    """Times of image gradients by the plain engine."""
    values = tile_values(batch)
    summed = batch.dims["c_out"] / np.maximum(batch.dims["groups"], 1.0)
    arithmetic = 2 * values * summed / (SHARE * spec.peak_flops("fp32")) * 1e6
    added = UPDATED_BYTES * values / (spec.memory_gbps * 1e3)
    return Estimates.uniform(KERNEL_FLOOR_US + arithmetic + added, Source.TRANSFERRED, SPREAD, NOTE)


def tile_values(batch: Batch) -> FloatArray:
    """Values in all tiles of all groups, full or not."""
    d = batch.dims
    high, wide = conv_output(d)
    pixels = np.ceil(high * wide / PIXELS) * PIXELS
    groups = np.maximum(d["groups"], 1.0)
    channels = np.ceil(d["c_in"] / groups * d["kh"] * d["kw"] / CHANNELS) * CHANNELS
    return np.asarray(d["batch"] * pixels * channels * groups)
