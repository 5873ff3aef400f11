"""Convolutions with a 1×1 window: matrix products over pixels, in the forward and in both gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepsight.estimate import Estimates, Source
from stepsight.kernels.columns import Batch, complete
from stepsight.kernels.families import conv_output
from stepsight.program.job import PLAIN

CONVOLUTIONS = frozenset({"conv", "conv_dgrad", "conv_wgrad"})
SPREAD = 0.1
"""Added: cuDNN takes up to 1.4 times what cuBLAS takes (ResNet-50 on V100, public traces)."""
NOTE = "1×1 window: a matrix product over the pixels"


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
    """The product's times, told as what they are."""
    source = np.maximum(product.source, int(Source.TRANSFERRED))
    notes = {i: "; ".join(filter(None, (NOTE, product.notes.get(i, "")))) for i in range(len(product))}
    return Estimates(product.time_us, source, np.hypot(product.spread, SPREAD), notes)
