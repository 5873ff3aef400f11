"""A GPU with figures other than the catalogue's: what models that know the real one say about it.

A fitted model is an efficiency of one chip: time = speed of light / efficiency. Changed figures move the
speed of light and leave the efficiency, so a kernel takes its time on the catalogue's GPU times the ratio of
the two speeds of light. Twice the peak, the bandwidth or the multiprocessors then never takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray
from stepsight.hardware.gpus import find_gpu, gpu_catalogue
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import BASE_US
from stepsight.kernels.roofline import TENSOR_CORE_FAMILIES, BoolArray, peak_flops, speed_of_light_us

C = area("kernels")

SPEEDS = ("sms", "clock_mhz", "memory_gbps", "pcie_gbps", "l2_mb", "l2_gbps", "peak_tflops")
"""Figures that kernel times depend on."""
LEAST_US = 1e-9


def catalogue_gpu(spec: GpuSpec) -> GpuSpec | None:
    """The GPU whose models speak for one with changed figures; None where nothing was changed.

    One of a name of the catalogue is that GPU. One of another name, but of a chip in the catalogue, has that
    chip's peaks: its models know no others. A peak that the catalogue does not have stays as it is.
    """
    entry = find_gpu(spec.name)
    if entry is not None and entry.gpu.architecture == spec.architecture:
        found = replace(spec, **{name: getattr(entry.gpu, name) for name in SPEEDS})
        peaks = entry.gpu.peak_tflops
    else:
        board = _board(spec)
        if board is None:
            return None
        found, peaks = spec, board.peak_tflops
    found = replace(found, peak_tflops={**spec.peak_tflops, **peaks})
    return None if all(getattr(found, name) == getattr(spec, name) for name in SPEEDS) else found


def changed_figures(spec: GpuSpec) -> list[str]:
    """The fields that a GPU of a name of the catalogue has otherwise."""
    entry = find_gpu(spec.name)
    if entry is None:
        return []
    found = [name for name in SPEEDS[:-1] if getattr(spec, name) != getattr(entry.gpu, name)]
    peaks = [d for d, tflops in spec.peak_tflops.items() if tflops != entry.gpu.peak_tflops.get(d)]
    if len(peaks) == len(spec.peak_tflops):
        return [*found, SPEEDS[-1]]
    return [*found, *(f"{SPEEDS[-1]}.{dtype}" for dtype in peaks)]


def _board(spec: GpuSpec) -> GpuSpec | None:
    """The board of the same chip with the closest figures."""
    chip = [
        e.gpu
        for e in gpu_catalogue().values()
        if (e.gpu.architecture, e.gpu.sms) == (spec.architecture, spec.sms)
    ]

    def apart(other: GpuSpec) -> float:
        ratios = (other.peak_flops("fp32") / spec.peak_flops("fp32"), other.memory_gbps / spec.memory_gbps)
        return float(np.abs(np.log(ratios)).sum())

    return min(chip, key=apart, default=None)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Kernels of a GPU with changed figures: times on the catalogue's GPU, by the ratio of the speeds of
    light."""

    spec: GpuSpec
    known: GpuSpec
    times: Callable[[Batch], Estimates]

    def handles(self, batch: Batch) -> BoolArray:
        return np.full(len(batch), batch.known)

    def estimate(self, batch: Batch) -> Estimates:
        return rescale_by_roofline(self.times(batch), batch, self.spec, self.known)


def as_chip(spec: GpuSpec, known: GpuSpec) -> GpuSpec:
    """The changed GPU with the multiprocessors of its chip; the clock makes up for those that differ.

    A chip is known by its multiprocessors, and what was fitted on it by their waves.
    """
    return replace(spec, sms=known.sms, clock_mhz=spec.clock_mhz * spec.sms / known.sms)


def rescale_by_roofline(answer: Estimates, batch: Batch, spec: GpuSpec, known: GpuSpec) -> Estimates:
    """Times on ``known`` as they are on ``spec``: by the ratio of their speeds of light.

    A kernel's start does not scale. What overlaps with it must not take a product above its peak.
    """
    time_us = answer.time_us * (BASE_US + speed_of_light_us(batch, spec))
    time_us = time_us / (BASE_US + speed_of_light_us(batch, known))
    if batch.family in TENSOR_CORE_FAMILIES:
        reached = np.maximum(1.0, _at_peak_us(batch, known) / np.maximum(answer.time_us, LEAST_US))
        time_us = np.maximum(time_us, _at_peak_us(batch, spec) / reached)
    moved = np.log(time_us / np.maximum(answer.time_us, LEAST_US))
    return replace(answer, time_us=time_us, spread=np.hypot(answer.spread, C.CHANGED_SPREAD * np.abs(moved)))


def _at_peak_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    return np.asarray(batch.flops / peak_flops(batch, spec) * 1e6)
