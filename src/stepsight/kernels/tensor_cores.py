"""What slows tensor-core GEMMs that no table shows: tf32 operands, and rows off 16-byte boundaries.

The tables hold bf16 GEMMs whose rows are multiples of 16 bytes. A row length that is not forces
the library onto kernels that load a few bytes at a time instead of 16; their names say so
("align1"). On Hopper they also miss the asynchronous tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepsight.estimate import Estimates, FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.roofline import peak_flops, speed_of_light_us
from stepsight.program.variants import UNALIGNED, Role

ROW_BYTES = 16

SMALL_TF32 = 0.2
"""How much longer tf32 GEMMs take than bf16's efficiency says, while they are short: 1.24 in the
median of 136 aligned ones in two A100 traces (HTA's samples in public traces, 2022)."""
SHORT_US = 100.0
"""Speed of light at which half of that is left: at 440 µs they take 0.95 (the same traces)."""

NARROW_LOADS: Mapping[str, float] = {"ampere": 0.7, "hopper": 1.6}
"""How much longer unaligned GEMMs take than aligned ones where arithmetic bounds them: ampere from
the same two traces (135 beside 136: 1.2 where memory takes three times the arithmetic, 1.5 where a
little more, 1.7 to 1.9 where less), hopper from three bf16 ones of TraceLens (2.3 to 3.1)."""
USUAL_NARROW_LOADS = 0.7
NARROW_HALF_LOADS = 1.6
"""The same for two-byte types, whose loads are half as wide: Hopper's bf16 products."""
SPREAD = 0.2
CLEAR_US = 20.0
"""Products shorter than this are bound by their start, whatever they compute in."""


def is_tensor_core(dtype: str) -> bool:
    return dtype in ("tf32", "fp16", "bf16")


def with_narrow_loads(batch: Batch, spec: GpuSpec, answer: Estimates, *, own_dtype: bool) -> Estimates:
    """The answers for GEMMs on tensor cores, longer where the tables do not speak for them.

    ``own_dtype``: the models were fitted on this very dtype.
    """
    factor = np.ones(len(batch))
    if batch.dtype == "tf32" and not own_dtype:
        factor += SMALL_TF32 / (1 + speed_of_light_us(batch, spec) / SHORT_US)
    unaligned = batch.where(lambda kind: kind.variant == UNALIGNED) | off_boundaries(batch)
    if unaligned.any():
        half = batch.dtype in ("fp16", "bf16")
        more = NARROW_HALF_LOADS if half else NARROW_LOADS.get(spec.architecture, USUAL_NARROW_LOADS)
        # Narrow loads hide behind memory that is slower still.
        factor *= np.where(unaligned, 1 + more * np.minimum(1.0, _intensity(batch, spec)), 1.0)
    spread: FloatArray = np.where(factor > 1, np.hypot(answer.spread, SPREAD), answer.spread)
    return Estimates(answer.time_us * factor, answer.source, spread, answer.notes)


def off_boundaries(batch: Batch) -> npt.NDArray[np.bool_]:
    """Products with a matrix whose rows do not start on 16-byte boundaries.

    Rows are n or k long, of a weight's gradient m or n: its k are the samples, one row each.
    """
    step = ROW_BYTES / batch.element_bytes
    m, n, k = (np.floor(batch.dims[key] / step) * step != batch.dims[key] for key in ("m", "n", "k"))
    return np.asarray(n | np.where(batch.where(lambda kind: kind.role is Role.WGRAD), m, k))


def never_longer_than(
    batch: Batch, spec: GpuSpec, answer: Estimates, full: Callable[[Batch], FloatArray]
) -> Estimates:
    """The answers, none above the time of the same product in fp32 (``full``).

    Only answers above the fp32 speed of light can be, so only those are asked for again; below
    `CLEAR_US` both are a launch and a few round trips to memory.
    """
    in_full = replace(batch, dtype="fp32", positions=np.arange(len(batch)))
    possible = answer.time_us > in_full.flops / (spec.peak_flops("fp32") / 1e6)
    doubted = np.nonzero(possible & (answer.time_us > CLEAR_US))[0]
    if not len(doubted):
        return answer
    time_us = answer.time_us.copy()
    again = replace(in_full.take(doubted), positions=np.arange(len(doubted)))
    time_us[doubted] = np.minimum(time_us[doubted], full(again))
    return Estimates(time_us, answer.source, answer.spread, answer.notes)


def _intensity(batch: Batch, spec: GpuSpec) -> FloatArray:
    """Time of the arithmetic at peak over time of the traffic at full bandwidth."""
    arithmetic = batch.flops / peak_flops(batch, spec) * 1e6
    return np.asarray(arithmetic / (batch.bytes / (spec.memory_gbps * 1e3)))
