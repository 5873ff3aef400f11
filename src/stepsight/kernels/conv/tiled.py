"""Convolutions on tensor cores: an implicit product in tiles, and the copies around it.

A thread block computes one tile of the result. It steps through the reduction, a slice of input channels
under one tap at a time. Long reductions, as the weights' gradients over all pixels, are cut into parts until
the GPU is full. Each multiprocessor takes its share of tiles one after another; a tile costs its steps, and a
start that nothing hides.

Tensor cores read images by pixel (channels_last). cuDNN and MIOpen bring images that lie by channel into that
order before their kernel and the result back after it; a gradient copies the two that it reads or writes, a
forward image and result, or (cuDNN in half precision) at most its image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, complete
from stepsight.kernels.families import conv_output
from stepsight.kernels.machine import FEEDING, Machine, feeding_share
from stepsight.kernels.roofline import KERNEL_FLOOR_US

C = area("kernels")

WRITES_BY_CHANNEL = frozenset({"fp16", "bf16"})
"""Types in which cuDNN's forward kernels write results by channel themselves (``nhwc2nchw`` in their names),
and products of 1×1 windows read images by channel, too. Larger windows have their image copied."""
COPY_SHARE = C.by_name("CONV_COPY_SHARE")


def has_tensor_cores(dtype: str, spec: GpuSpec) -> bool:
    """Whether the GPU multiplies this dtype faster than fp32."""
    return dtype in ("tf32", "fp16", "bf16") and spec.peak_flops(dtype) > 1.5 * spec.peak_flops("fp32")


def copies_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """What is read copied into the order of pixels, what is written copied back; zero where nothing is."""
    d = batch.dims
    copied = d["reordered"] > 0
    plain = d["groups"] <= 1
    by_channel = batch.family == "conv" and spec.vendor == "nvidia" and batch.dtype in WRITES_BY_CHANNEL
    if by_channel:
        copied &= ~plain | (d["kh"] * d["kw"] > 1)
    apart = plain & ~copied
    padded_image, padded_result = (apart & _needs_padding(batch, spec, d[key]) for key in ("c_in", "c_out"))
    some = copied | padded_image | padded_result
    if not has_tensor_cores(batch.dtype, spec) or not some.any():
        return np.zeros(len(batch))
    high, wide = conv_output(d)
    image = np.where(copied | padded_image, d["batch"] * d["c_in"] * d["h"] * d["w"], 0.0)
    written = (copied & ~(by_channel & plain)) | padded_result
    result = np.where(written, d["batch"] * d["c_out"] * high * wide, 0.0)
    moved = 2.0 * batch.element_bytes * (image + result)
    share = COPY_SHARE.get(spec.vendor, COPY_SHARE["nvidia"])
    return np.asarray(moved / (spec.memory_gbps * 1e3 * share))


def _needs_padding(batch: Batch, spec: GpuSpec, channels: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether cuDNN copies a tensor into one whose channels fill loads of 16 bytes (``nhwcToFoldedNhwc``).
    First layers and products of 1×1 windows have kernels for narrow loads."""
    if spec.vendor != "nvidia" or batch.dtype not in WRITES_BY_CHANNEL:
        return np.zeros(len(batch), dtype=bool)
    window = batch.dims["kh"] * batch.dims["kw"] > 1
    return np.asarray(window & (channels % PADDED > 0) & (channels > FEW))


def with_copies(answer: Estimates, batch: Batch, spec: GpuSpec) -> Estimates:
    """The answers with the copies around them."""
    copies = copies_us(batch, spec)
    return Estimates(answer.time_us + copies, answer.source, answer.spread, answer.notes)


TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32))
"""Rows and columns of a result's tile, as kernels of cuDNN, CUTLASS and MIOpen state them in their names."""
SQUARE = 128
"""Side of the tile that shares of peak are stated for."""
STEP = 32
"""Input channels in one step of the reduction."""
PADDED, FEW = 8, 4
"""Channels that a load of 16 bytes holds in half precision; those of first layers."""
FIRST_LAYER_TAPS = 49
"""Largest window of cuDNN's kernels for few channels (``first_layer_fwd_kernel``: 7×7). Patches of 16×16 with
three channels take a step a tap (256 steps in 98 µs on H100)."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Parts that a reduction may be cut into, each by a block of its own; their sums are added up afterwards."""
FEWEST_STEPS = 8
"""Steps that a part has at least."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a library's kernels reach on one vendor's GPUs.

    ``full`` and ``half``: share of the tensor cores' peak inside the loop of a square tile, in tf32 and in
    half precision;
    ``dgrad``, ``wgrad``: what the gradients reach of that; ``wgrad_full``: in tf32 where matrix instructions
    take operands from shared memory, which they transpose in 16 bits only (PTX ISA, wgmma);
    ``step_us``: the shortest step (a round trip to the cache over the steps in flight);
    ``start_us``: of a tile's first loads, what other tiles on the multiprocessor do not hide;
    ``bandwidth``: share of the memory's;
    ``joined``: a step may hold channels of several taps, so that few channels waste none of it;
    ``cuts``: also reductions of a forward and of an image's gradient are cut into parts.
    """

    full: float
    half: float
    dgrad: float
    wgrad: float
    wgrad_full: float
    step_us: float
    start_us: float
    bandwidth: float
    joined: bool
    cuts: bool


REACH: Mapping[str, Reach] = {
    # VGG-13 on H100 in tf32 (public traces): 128×256 tiles 0.91 of peak at 72 steps, 0.94 at 144;
    # dgrad 1.01 to 1.19 times the forward, wgrad 1.8 to 2.6 times.
    # Steps: 16×16 patches in bf16 on H100, 256 steps in 98 µs. Half precision: cuBLAS on H100 sustains 0.75.
    "nvidia": Reach(0.95, 0.75, 0.9, 0.85, 0.48, 0.35, 0.75, 0.85, joined=False, cuts=False),
    # ResNet-18 on MI300X in bf16, batch 512 (public traces): 0.36 to 0.39 of peak.
    "amd": Reach(0.40, 0.40, 0.85, 0.72, 0.72, 0.3, 10.0, 0.70, joined=True, cuts=True),
}
NOTE = "implicit GEMM in tiles on tensor cores"
MEETING = 2.0
"""Loading, computing and storing of one tile overlap only with those of others."""


def tiled_estimates(batch: Batch, spec: GpuSpec) -> Estimates:
    """Times of convolutions in a dtype for which the GPU has tensor cores."""
    time_us = KERNEL_FLOOR_US + tiled_us(batch, spec) + copies_us(batch, spec)
    return Estimates.uniform(time_us, Source.TRANSFERRED, C.TILED_CONV_SPREAD, NOTE)


def in_tiles(product: Batch, spec: GpuSpec) -> Estimates:
    """A plain product as the pointwise convolution over its rows that it is."""
    d = product.dims
    sizes = {"batch": d["m"], "c_in": d["k"], "c_out": d["n"]}
    ones = dict.fromkeys(("h", "w", "kh", "kw", "stride", "groups"), np.ones(len(product)))
    dims = complete("conv", product.dtype, {**sizes, **ones}, len(product))
    return tiled_estimates(replace(product, family="conv", dims=dims), spec)


def tiled_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """The main kernel: the fastest tiles, or memory."""
    reach = REACH.get(spec.vendor, REACH["nvidia"])
    rows, cols, steps = _product(batch, joined=reach.joined)
    feeding, share = _reached(batch, spec, reach)
    per_sm = spec.peak_flops(batch.dtype) / 1e6 / spec.sms * share
    groups = np.maximum(batch.dims["groups"], 1.0)
    best: FloatArray = np.full(len(batch), np.inf)
    for high, wide in TILES if spec.vendor == "nvidia" else TILES[:6]:
        tiles = groups * np.ceil(rows / high) * np.ceil(cols / wide)
        # Operands of a tile are its sides, its work their product.
        fed = 1 + feeding * (SQUARE / 2 * (1 / high + 1 / wide) if spec.vendor == "nvidia" else 1.0)
        step = np.maximum(2.0 * high * wide * STEP / per_sm * fed, reach.step_us)
        for parts in PARTS if reach.cuts or batch.family == "conv_wgrad" else PARTS[:1]:
            one = np.ceil(steps / parts) * step + reach.start_us
            added = 0.0 if parts == 1 else 8.0 * parts * groups * rows * cols / (spec.memory_gbps * 1e3)
            time = np.ceil(tiles * parts / spec.sms) * one + added
            able = (parts == 1) | (steps >= FEWEST_STEPS * parts)
            best = np.where(able, np.minimum(best, time), best)
    memory = batch.bytes / (spec.memory_gbps * 1e3 * reach.bandwidth)
    return np.asarray((best**MEETING + memory**MEETING) ** (1 / MEETING))


def _reached(batch: Batch, spec: GpuSpec, reach: Reach) -> tuple[float, float]:
    """Clocks that feeding adds to each clock of the tensor cores, for a square tile; what the gradients reach
    of a forward."""
    share = reach.full if batch.dtype == "tf32" else reach.half
    synchronous = spec.vendor == "nvidia" and not Machine.of(spec, batch.dtype).wide
    if synchronous:
        share = feeding_share(spec, batch.dtype) / (1 + FEEDING)
    gradient = 1.0
    if batch.family == "conv_dgrad":
        gradient = reach.dgrad
    if batch.family == "conv_wgrad":
        gradient = reach.wgrad_full if batch.dtype == "tf32" and not synchronous else reach.wgrad
    return 1 / share - 1, gradient


def _product(batch: Batch, *, joined: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows and columns of the result, and steps of its reduction."""
    d = batch.dims
    high, wide = conv_output(d)
    taps, pixels = d["kh"] * d["kw"], d["batch"] * high * wide
    groups = np.maximum(d["groups"], 1.0)
    c_in, c_out = d["c_in"] / groups, d["c_out"] / groups
    if batch.family == "conv_wgrad":
        return c_out, c_in * taps, np.ceil(pixels / STEP)
    if batch.family == "conv_dgrad":
        # A pixel of the image lies under as many taps as there are outputs that read it.
        image = np.maximum(d["h"] * d["w"], 1.0)
        under = np.minimum(taps * high * wide / image, taps)
        return d["batch"] * image, c_in, _steps(c_out, under, joined=joined)
    return pixels, c_out, _steps(c_in, taps, joined=joined)


def _steps(channels: FloatArray, taps: FloatArray, *, joined: bool) -> FloatArray:
    """Steps of the reduction. Few channels are padded to 16 bytes, and those of several taps share a step in
    the kernels that libraries have for first layers."""
    padded = np.ceil(channels / PADDED) * PADDED
    shared = np.ceil(padded * taps / STEP)
    first_layer = (padded < STEP) & (taps <= FIRST_LAYER_TAPS)
    return shared if joined else np.where(first_layer, shared, np.ceil(np.ceil(channels / STEP) * taps))
