"""Convolutions as products: 1×1 windows, and the algorithms of fp32.

- A 1×1 window is a product over pixels, forward and in both gradients.
- The direct algorithm is a product over pixels, channels under all taps reduced over. Winograd's (3×3
  windows, stride 1) turns tiles of 4×4 or 2×2 pixels into 36 or 16 values and multiplies those: 4 or 2.25
  times fewer products for more traffic. Image, filters and result pass kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, complete
from stepsight.kernels.families import conv_output
from stepsight.kernels.roofline import KERNEL_FLOOR_US
from stepsight.program.job import PLAIN

C = area("kernels")

CONVOLUTIONS = frozenset({"conv", "conv_dgrad", "conv_wgrad"})
POINTWISE_NOTE = "1×1 window: a matrix product over the pixels"


def is_pointwise(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which convolutions are plain products: one tap, one group."""
    d = batch.dims
    return np.asarray((d["kh"] == 1) & (d["kw"] == 1) & (d["groups"] <= 1))


def as_product(batch: Batch) -> Batch:
    """The product that a pointwise convolution or a gradient of it is."""
    d = batch.dims
    high, wide = conv_output(d)
    pixels = d["batch"] * high * wide
    sizes = {
        "conv": {"m": pixels, "n": d["c_out"], "k": d["c_in"]},
        "conv_dgrad": {"m": pixels, "n": d["c_in"], "k": d["c_out"]},
        "conv_wgrad": {"m": d["c_out"], "n": d["c_in"], "k": pixels},
    }[batch.family]
    dims = complete("gemm", batch.dtype, sizes, len(batch))
    return Batch("gemm", batch.dtype, dims, [PLAIN] * len(batch), np.arange(len(batch)))


def turned(product: Batch) -> Batch:
    """The same product with its sides exchanged: the weights' channels as rows, the pixels as columns."""
    dims = {**product.dims, "m": product.dims["n"], "n": product.dims["m"]}
    return replace(product, dims=dims)


def faster(one: Estimates, other: Estimates) -> Estimates:
    """The shorter of two times, each with its own source and note."""
    first = one.time_us <= other.time_us
    notes = {i: (one if first[i] else other).notes.get(i, "") for i in range(len(one))}
    pairs = ((one.time_us, other.time_us), (one.source, other.source), (one.spread, other.spread))
    time_us, source, spread = (np.where(first, a, b) for a, b in pairs)
    return Estimates(time_us, source, spread, {i: note for i, note in notes.items() if note})


def as_convolution(product: Estimates) -> Estimates:
    """The product's times as those of a convolution."""
    source = np.maximum(product.source, int(Source.TRANSFERRED))
    notes = {
        i: "; ".join(filter(None, (POINTWISE_NOTE, product.notes.get(i, "")))) for i in range(len(product))
    }
    return Estimates(product.time_us, source, np.hypot(product.spread, C.POINTWISE_CONV_SPREAD), notes)


Products = Callable[[Batch], Estimates]

NETWORK_CHANNELS = 32
"""Channel counts of networks are multiples of it: whole cache lines of fp32."""
WINOGRAD = ((4, 36), (2, 16))
"""Pixels along a tile's side, values a tile is turned into."""
TAPS = 3
GRADIENTS = {"conv": 1.0, "conv_dgrad": 0.9, "conv_wgrad": 1.05}
"""The gradients over the forward: together 1.95 times (median of 1,020 ResNet layers on V100)."""
ALGORITHM_NOTE = "fastest of a direct product and Winograd's"


def beyond_tables(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which convolutions the tables do not speak for."""
    d = batch.dims
    like = (d["kh"] == TAPS) & (d["kw"] == TAPS) & (d["stride"] == 1)
    network = (d["c_in"] % NETWORK_CHANNELS == 0) & (d["c_out"] % NETWORK_CHANNELS == 0)
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
    notes = dict.fromkeys(range(len(batch)), ALGORITHM_NOTE)
    return Estimates(time_us, source, np.hypot(answer.spread, C.CONV_ALGORITHM_SPREAD), notes)


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
    transforms = moved / (spec.memory_gbps * 1e3 * C.WINOGRAD_TRANSFORM_SHARE)
    return np.asarray(multiplied + transforms + 3 * KERNEL_FLOOR_US)
