"""The speed of light, and how much of it a family reaches where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch

C = area("kernels")

BoolArray = np.typing.NDArray[np.bool_]

KERNEL_FLOOR_US = C.number("KERNEL_FLOOR_US")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of peak arithmetic and of memory bandwidth that a family reaches when large."""

    arithmetic: float
    bandwidth: float


# Medians over kernels above 50 µs in profiler traces of V100, A100 and H100 (public traces),
# rounded; copies over PCIe from the V100 DLRM kernel lists.
EFFICIENCY: Mapping[str, Efficiency] = {
    "gemm": Efficiency(0.75, 0.75),
    "conv": Efficiency(0.60, 0.70),
    "conv_dgrad": Efficiency(0.55, 0.65),
    "conv_wgrad": Efficiency(0.50, 0.60),
    "attention": Efficiency(0.55, 0.70),
    "attention_backward": Efficiency(0.45, 0.65),
    "gather": Efficiency(0.5, 0.55),
    "scatter": Efficiency(0.5, 0.40),
    "transpose": Efficiency(0.5, 0.60),
    "layer_norm_backward": Efficiency(0.5, 0.65),
    "reduce": Efficiency(0.5, 0.70),
}
USUAL = Efficiency(0.5, 0.80)

TENSOR_CORE_FAMILIES = frozenset(
    {"gemm", "conv", "conv_dgrad", "conv_wgrad", "attention", "attention_backward"}
)
PCIE_FAMILIES = frozenset({"copy_h2d", "copy_d2h"})


def bandwidth_gbps(batch: Batch, spec: GpuSpec) -> float:
    """What the family's bytes cross: PCIe for copies from and to the host, else device memory."""
    return spec.pcie_gbps if batch.family in PCIE_FAMILIES else spec.memory_gbps


def peak_flops(batch: Batch, spec: GpuSpec) -> float:
    """FLOP/s the family can use: element-wise work never runs on tensor cores."""
    if batch.family in TENSOR_CORE_FAMILIES:
        return spec.peak_flops(batch.dtype)
    return spec.peak_flops("fp32")


def speed_of_light_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """The least time physics allows: arithmetic at peak, or bytes at full bandwidth."""
    arithmetic = batch.flops / peak_flops(batch, spec) * 1e6
    traffic = batch.bytes / (bandwidth_gbps(batch, spec) * 1e3)
    return np.maximum(arithmetic, traffic)


WINOGRAD_SAVES = 4.0
"""Multiplications of a direct 3×3 convolution over those of Winograd's on tiles of 4×4 pixels."""


def at_most_peak(answer: Estimates, batch: Batch, spec: GpuSpec) -> Estimates:
    """The answers, none faster than peak arithmetic allows; without tensor cores convolutions may save some.

    Traffic sets no such limit: what stays in the cache never reaches memory.
    """
    if not batch.known:
        return answer
    least = batch.flops / peak_flops(batch, spec) * 1e6
    if batch.family.startswith("conv"):
        d = batch.dims
        saves = (d["kh"] == 3) & (d["kw"] == 3) & (d["stride"] == 1) & (batch.dtype in ("fp32", "fp64"))
        least = np.where(saves, least / WINOGRAD_SAVES, least)
    if (answer.time_us >= least).all():
        return answer
    return replace(answer, time_us=np.maximum(answer.time_us, least))


def roofline(batch: Batch, spec: GpuSpec) -> Estimates:
    """Speed of light over the family's usual efficiency, plus the shortest kernel."""
    if not batch.known:
        return unknown(batch, spec)
    reach = EFFICIENCY.get(batch.family, USUAL)
    arithmetic = batch.flops / peak_flops(batch, spec) * 1e6 / reach.arithmetic
    traffic = batch.bytes / (bandwidth_gbps(batch, spec) * 1e3) / reach.bandwidth
    time_us = KERNEL_FLOOR_US + np.maximum(arithmetic, traffic)
    return Estimates.uniform(time_us, Source.ROOFLINE, C.ROOFLINE_SPREAD)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Whatever no other estimator handles."""

    spec: GpuSpec

    def handles(self, batch: Batch) -> BoolArray:
        return np.ones(len(batch), dtype=bool)

    def estimate(self, batch: Batch) -> Estimates:
        return roofline(batch, self.spec)


def unknown(batch: Batch, spec: GpuSpec) -> Estimates:
    """A family without a model: its stated bytes, else ten kernel floors, and a note that says so."""
    n = len(batch)
    traffic = np.zeros(n)
    for key in ("read_bytes", "write_bytes", "bytes"):
        if key in batch.dims:
            traffic = traffic + batch.dims[key]
    stated = traffic / (spec.memory_gbps * 1e3) / USUAL.bandwidth
    time_us = KERNEL_FLOOR_US + np.where(traffic > 0, stated, 9 * KERNEL_FLOOR_US)
    return Estimates.uniform(
        time_us, Source.DEFAULT, C.UNKNOWN_SPREAD, f"no model for kernel family {batch.family!r}"
    )
