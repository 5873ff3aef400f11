"""Convolutions without tensor cores that are in no table: the fastest of the algorithms libraries have.

- The direct one is a product over pixels, channels under all taps reduced over.
- Winograd's (3×3 windows, stride 1) turns tiles of 4×4 or 2×2 pixels into 36 or 16 values and multiplies
  those: 4 or 2.25 times fewer products for more traffic. Image, filters and result pass kernels of their own.

Products take what the GPU's product model says. The tables hold windows of 3×3 at stride one with arbitrary
numbers of channels; networks have multiples of 32, for which libraries keep faster kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import conv_output
from stepsight.kernels.roofline import KERNEL_FLOOR_US

Products = Callable[[Batch], Estimates]

CHANNELS = 32
"""Channel counts of networks are multiples of it: whole cache lines of fp32."""
WINOGRAD = ((4, 36), (2, 16))
"""Pixels along a tile's side, values a tile is turned into."""
TAPS = 3
TRANSFORM_SHARE = 0.8
"""Share of memory bandwidth of Winograd's transforms: 0.74 to 0.85 in ResNet-50 on V100
(public traces)."""
GRADIENTS = {"conv": 1.0, "conv_dgrad": 0.9, "conv_wgrad": 1.05}
"""The gradients over the forward: together 1.95 times (median of 1,020 ResNet layers on V100)."""
SPREAD = 0.15
"""Added to the product's: layers of wide ResNets on V100 (Megatron's layers) take 0.93 to 1.17 times
this at stride one (quartiles), 0.80 to 0.95 at stride two."""
NOTE = "fastest of a direct product and Winograd's"


def beyond_tables(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which convolutions the tables do not speak for."""
    d = batch.dims
    like = (d["kh"] == TAPS) & (d["kw"] == TAPS) & (d["stride"] == 1)
    network = (d["c_in"] % CHANNELS == 0) & (d["c_out"] % CHANNELS == 0)
    return np.asarray(~like | network)


def fastest_estimates(batch: Batch, spec: GpuSpec, products: Products) -> Estimates:
    """The fastest algorithm's time, with the product model's spread."""
    d = batch.dims
    direct = _direct(batch)
    answer = products(direct)
    time_us = answer.time_us
    for side, values in WINOGRAD:
        both = _multiplied(batch, side, values, spec, products)
        fits = (d["kh"] == TAPS) & (d["kw"] == TAPS) & (d["stride"] == 1)
        time_us = np.where(fits, np.minimum(time_us, both), time_us)
    time_us = KERNEL_FLOOR_US + GRADIENTS[batch.family] * time_us
    source = np.full(len(batch), int(Source.TRANSFERRED))
    notes = dict.fromkeys(range(len(batch)), NOTE)
    return Estimates(time_us, source, np.hypot(answer.spread, SPREAD), notes)


def _direct(batch: Batch) -> Batch:
    d = batch.dims
    high, wide = conv_output(d)
    sizes = {
        "batch": np.ones(len(batch)),
        "m": d["batch"] * high * wide,
        "n": d["c_out"],
        "k": d["c_in"] * d["kh"] * d["kw"],
    }
    return Batch.of("gemm", batch.dtype, sizes, "linear")


def _multiplied(batch: Batch, side: int, values: int, spec: GpuSpec, products: Products) -> FloatArray:
    """Winograd's algorithm with tiles of ``side``: the products and the transforms around them."""
    d = batch.dims
    high, wide = conv_output(d)
    tiles = d["batch"] * np.ceil(high / side) * np.ceil(wide / side)
    sizes = {"batch": np.full(len(batch), float(values)), "m": tiles, "n": d["c_out"], "k": d["c_in"]}
    multiplied = products(Batch.of("gemm", batch.dtype, sizes, "bmm")).time_us
    plain = d["batch"] * (d["c_in"] * d["h"] * d["w"] + d["c_out"] * high * wide)
    turned = values * tiles * (d["c_in"] + d["c_out"])
    filters = (TAPS**2 + values) * d["c_in"] * d["c_out"]
    moved = batch.element_bytes * (plain + turned + filters)
    transforms = moved / (spec.memory_gbps * 1e3 * TRANSFORM_SHARE)
    return np.asarray(multiplied + transforms + 3 * KERNEL_FLOOR_US)
