"""Convolutions whose channels are split into groups; with one channel a group they are depthwise.

Nobody measured them for the tables here, so times follow from how the kernels work: the longest of device
memory, L2 cache and instructions issued. torch (ATen/native/Convolution.cpp) runs a depthwise convolution
with kernels of its own (ATen/native/cuda/DepthwiseConv2d.cu) or with cuDNN's; the kernel's name says which
(`program.aten.images` decides for captured scripts, traces name the kernels).

torch's own kernels compute one element a thread. Every tap loads a weight and a pixel and checks bounds. The
weights' gradient has one block for each channel and tap, so it reads image and gradient once a tap.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.conv.tiled import STEP, copies_us, has_tensor_cores, tiled_us
from stepsight.kernels.families import conv_output
from stepsight.kernels.roofline import EFFICIENCY, KERNEL_FLOOR_US, peak_flops
from stepsight.program.variants import CUDNN, GROUPED_DIRECT

C = area("kernels")

NATIVE_NOTE = "torch's own depthwise kernels, by instructions, cache and memory"
CUDNN_NOTE = "cuDNN's depthwise kernels, by instructions and memory"
GROUPED_NOTE = "channels in groups: products padded to tiles"

LANES: Mapping[str, int] = {"nvidia": 128, "amd": 64}
"""Lanes that a multiprocessor issues for in a clock: four warps of 32; four SIMDs of 16 (CDNA)."""

ELEMENT_SLOTS = C.by_name("DEPTHWISE_ELEMENT_SLOTS")
NATIVE_TAP_SLOTS = C.by_name("DEPTHWISE_TAP_SLOTS")
HALF_TAP_SLOTS = 2.0
"""Two conversions to fp32 a tap."""
WARP = 32
WGRAD_WARPS = 8
"""The weights' gradient: a block of 256 threads, one warp an image, lanes over its pixels."""
RESIDENT_WARPS = 64
"""Warps that a multiprocessor holds."""

CUDNN_TAP_SLOTS = C.by_name("CUDNN_TAP_SLOTS")

DIRECT_NOTE = "cuDNN's direct kernels for groups in NHWC, without tensor cores"
BLOCKED_WIDTHS = (4.0, 8.0, 16.0, 32.0)
BLOCKED_GROUPS, FEWEST_GROUPS = 4, 16
"""Groups that cuDNN's kernels put side by side: of these widths, in multiples of four from 16 groups (eight
of 32 channels)."""
INSTRUCTION = 16
"""Channels that a matrix instruction reduces over in half precision."""
DIRECT_TAP_SLOTS, DIRECT_SLOTS = 96.0, 9.0
"""Instructions of a gradient's direct kernel per output and tap (address and bounds), and per channel of it
(loads, conversions to fp32, a multiply-add)."""
STRIDED_SLOTS, STRIDED_CHANNELS = 70.0, 64
"""Per channel where a stride skips pixels, up to this many channels. Both are the means of two gradients in
50 training steps on an RTX 3090 (cuDNN 8.3); fitted on one half of the model families they leave 11 and 13 %
of the other's steps. Forwards run on tensor cores."""

GROUP_TILE = 32
"""The narrowest tile of channels of implicit-GEMM kernels: groups of fewer channels waste the rest."""
GROUP_STEP = 16
"""Values of a group's reduction, over channels and taps, that a step takes at once."""


def grouped_estimates(batch: Batch, spec: GpuSpec) -> Estimates:
    """Times of convolutions with more than one group."""
    d = batch.dims
    depthwise = (d["c_in"] == d["groups"]) & (d["c_out"] % np.maximum(d["groups"], 1) == 0)
    cudnn = batch.where(lambda kind: kind.variant in (CUDNN, GROUPED_DIRECT))
    native = depthwise & ~cudnn
    per_channel = np.where(native, _native_us(batch, spec), _cudnn_us(batch, spec))
    unvectorised = depthwise & batch.where(lambda kind: kind.variant == GROUPED_DIRECT)
    per_channel = np.where(unvectorised, _direct_us(batch, spec), per_channel)
    grouped, direct = _several_us(batch, spec)
    time_us = KERNEL_FLOOR_US + np.where(depthwise, per_channel, grouped)
    of_groups = np.where(direct, DIRECT_NOTE, GROUPED_NOTE)
    notes = np.where(native, NATIVE_NOTE, np.where(depthwise, CUDNN_NOTE, of_groups)).tolist()
    source = np.full(len(batch), int(Source.ROOFLINE))
    return Estimates(time_us, source, np.full(len(batch), C.GROUPED_CONV_SPREAD), dict(enumerate(notes)))


def _issue_us(slots: FloatArray, spec: GpuSpec) -> FloatArray:
    """Time to issue instructions, counted a lane."""
    lanes = LANES.get(spec.vendor.lower(), LANES["nvidia"])
    return slots / (spec.sms * lanes * spec.clock_mhz)


def _memory_us(batch: Batch, spec: GpuSpec, share: float) -> FloatArray:
    return batch.bytes / (spec.memory_gbps * 1e3 * share)


def _outputs(batch: Batch) -> FloatArray:
    high, wide = conv_output(batch.dims)
    return np.asarray(batch.dims["batch"] * batch.dims["c_out"] * high * wide)


def _native_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    d = batch.dims
    taps = d["kh"] * d["kw"]
    per_tap = NATIVE_TAP_SLOTS[batch.family] + np.where(batch.element_bytes < 4, HALF_TAP_SLOTS, 0.0)
    memory = _memory_us(batch, spec, C.DEPTHWISE_BANDWIDTH)
    if batch.family != "conv_wgrad":
        pixels = d["batch"] * d["c_in"] * d["h"] * d["w"] if batch.family == "conv_dgrad" else _outputs(batch)
        multiplied = d["c_out"] / d["c_in"] if batch.family == "conv_dgrad" else 1.0
        before = np.where(taps > 1, ELEMENT_SLOTS[batch.family], ELEMENT_SLOTS["conv"])
        slots = before + taps * multiplied * per_tap
        return np.maximum(memory, _issue_us(pixels * slots, spec))
    high, wide = conv_output(d)
    blocks = d["c_out"] * taps
    warps = np.minimum(d["batch"], WGRAD_WARPS)
    turns = np.ceil(d["batch"] / warps) * np.ceil(high * wide / WARP)
    slots = blocks * warps * WARP * (turns * per_tap + C.DEPTHWISE_REDUCE_SLOTS)
    # Image and gradient at every tap; only the pixels under the output's grid are read of the image.
    cache = 2 * _outputs(batch) * taps * batch.element_bytes / (spec.l2_gbps * 1e3 * C.DEPTHWISE_L2_SHARE)
    waves = np.ceil(blocks * warps / (spec.sms * RESIDENT_WARPS))
    longest = np.maximum(_issue_us(slots, spec), waves * turns * C.DEPTHWISE_TURN_US)
    return np.asarray(np.maximum(np.maximum(memory, cache), longest))


def _cudnn_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    d = batch.dims
    slots = _outputs(batch) * d["kh"] * d["kw"] * CUDNN_TAP_SLOTS[batch.family]
    return np.maximum(_memory_us(batch, spec, C.CUDNN_DEPTHWISE_BANDWIDTH), _issue_us(slots, spec))


def _several_us(batch: Batch, spec: GpuSpec) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Groups of several channels: times, and which run cuDNN's direct kernels without tensor cores."""
    d = batch.dims
    nowhere = np.zeros(len(batch), dtype=bool)
    if not has_tensor_cores(batch.dtype, spec):
        return _padded_products_us(batch, spec), nowhere
    into, out = d["c_in"] / d["groups"], d["c_out"] / d["groups"]
    many = (d["groups"] >= FEWEST_GROUPS) | ((into == STEP) & (d["groups"] >= FEWEST_GROUPS / 2))
    blocked = many & (d["groups"] % BLOCKED_GROUPS == 0) & (into == out) & np.isin(into, BLOCKED_WIDTHS)
    tiled = np.where(blocked, _blocked_us(batch, spec), tiled_us(batch, spec)) + copies_us(batch, spec)
    direct_us = _direct_us(batch, spec)
    named = batch.where(lambda kind: kind.variant == GROUPED_DIRECT)
    direct = named | (~blocked & (direct_us < tiled))
    return np.where(direct, direct_us, tiled), direct


def _blocked_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """Groups side by side in a block-diagonal product: narrow ones fill one matrix instruction together."""
    reach = EFFICIENCY[batch.family]
    width = np.maximum(batch.dims["c_in"] / batch.dims["groups"], 1.0)
    wasted = np.maximum(INSTRUCTION / width, 1.0)
    arithmetic = batch.flops * wasted / peak_flops(batch, spec) * 1e6 / reach.arithmetic
    return np.maximum(arithmetic, _memory_us(batch, spec, reach.bandwidth))


def _direct_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    d = batch.dims
    width = d["c_in"] / d["groups"]
    strided = STRIDED_SLOTS * np.minimum(width, STRIDED_CHANNELS)
    per_tap = DIRECT_TAP_SLOTS + np.where(d["stride"] > 1, strided, DIRECT_SLOTS * width)
    slots = _outputs(batch) * d["kh"] * d["kw"] * per_tap
    return np.maximum(_memory_us(batch, spec, C.CUDNN_DEPTHWISE_BANDWIDTH), _issue_us(slots, spec))


def _padded_products_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """As many products as groups, each padded to a tile."""
    d, reach = batch.dims, EFFICIENCY[batch.family]
    groups = np.maximum(d["groups"], 1.0)
    columns = np.maximum(d["c_out"] / groups, 1.0)
    reduced = np.maximum(d["c_in"] / groups * d["kh"] * d["kw"], 1.0)
    if batch.family == "conv_dgrad":
        columns, reduced = np.maximum(d["c_in"] / groups, 1.0), columns * d["kh"] * d["kw"]
    wasted = _padded(columns, GROUP_TILE) * _padded(reduced, GROUP_STEP)
    arithmetic = batch.flops * wasted / peak_flops(batch, spec) * 1e6 / reach.arithmetic
    return np.maximum(arithmetic, _memory_us(batch, spec, reach.bandwidth))


def _padded(size: FloatArray, tile: int) -> FloatArray:
    """How much larger a size is in whole tiles."""
    return np.asarray(np.ceil(size / tile) * tile / size)
