"""Times of fused attention kernels by their version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates, IntArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels import flash2
from stepsight.kernels.columns import Batch, joined, put_together
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.learned.residual import Residual, nearest
from stepsight.kernels.machine import Machine
from stepsight.kernels.roofline import BoolArray
from stepsight.program.variants import CUDNN, EFFICIENT, FLASH1, FLASH2, FLASH3

C = area("kernels")

FAMILIES = frozenset({"attention", "attention_backward"})
KERNELS = {EFFICIENT: "the memory-efficient kernel", FLASH1: "FlashAttention 1"}
AMPERE = "ampere"
"""All that have neither wide tensor cores nor too old ones run what Ampere runs."""
Forward = Callable[[Batch], Estimates | None]
"""Forward times from tables of this GPU or a relative; None where no table speaks for it."""


def versions(batch: Batch, spec: GpuSpec) -> list[tuple[str, IntArray]]:
    """The rows of a batch by version."""
    architecture = spec.architecture if runs_wide(spec) or spec.architecture in NO_FLASH else AMPERE
    known = {kind: version_on(kind.variant, architecture, batch.dtype) for kind in set(batch.kinds)}
    if len(set(known.values())) <= 1:
        return [(next(iter(known.values()), FLASH2), np.arange(len(batch)))]
    each = np.array([known[kind] for kind in batch.kinds])
    return [(version, np.nonzero(each == version)[0]) for version in dict.fromkeys(each.tolist())]


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Fused attention, each version by its own model; ``tabled``: also those that tables speak for."""

    fitted: Fitted
    tabled: bool

    def handles(self, batch: Batch) -> BoolArray:
        if batch.family not in FAMILIES or self.tabled:
            return np.full(len(batch), batch.family in FAMILIES)
        handled = np.zeros(len(batch), dtype=bool)
        for version, rows in versions(batch, self.fitted.spec):
            handled[rows] = version not in BACKWARD_OVER_FORWARD
        return handled

    def estimate(self, batch: Batch) -> Estimates:
        spec, residuals = self.fitted.spec, self.fitted.residuals
        parts = []
        for version, rows in versions(batch, spec):
            part = batch if len(rows) == len(batch) else batch.take(rows)
            parts.append((rows, attention_estimates(part, version, spec, residuals, self._forward)))
        return put_together(parts, len(batch))

    def _forward(self, batch: Batch) -> Estimates | None:
        chosen = self.fitted.choice("attention", batch.dtype)
        return None if chosen is None else self.fitted.learned(batch, chosen)


def attention_estimates(
    batch: Batch, version: str, spec: GpuSpec, residuals: Sequence[Residual], forward: Forward
) -> Estimates:
    """Times of kernels of one version, forward or backward."""
    backward = batch.family == "attention_backward"
    if version in BACKWARD_OVER_FORWARD:
        found = _by_tables(batch, version, spec, forward)
        if found is not None:
            return found
    times = _flash2(batch, spec, residuals, backward=backward)
    reach = AGAINST_FLASH2.get(version)
    if reach is None:
        return times
    factor = reach.backward if backward else reach.forward
    return Estimates(
        times.time_us * factor,
        np.full(len(batch), int(Source.TRANSFERRED)),
        np.hypot(times.spread, reach.spread),
        {i: _against_flash2(kind.variant, version, spec, factor) for i, kind in enumerate(batch.kinds)},
    )


def _against_flash2(asked: str, version: str, spec: GpuSpec, factor: float) -> str:
    """Whose kernel runs, and by what it is timed."""
    runs = f"{KERNELS[version]}, taken as {factor:g} times as long as FlashAttention-2"
    if version == EFFICIENT and version_on(asked, AMPERE) == FLASH2:
        return f"FlashAttention-2 does not run on {spec.name}: {runs}"
    return runs


def _flash2(batch: Batch, spec: GpuSpec, residuals: Sequence[Residual], *, backward: bool) -> Estimates:
    """First principles, corrected by what was measured on this chip or the nearest one."""
    base = flash2.base_us(batch, spec, backward=backward)
    if batch.dtype in ("fp32", "tf32"):
        return Estimates.uniform(base, Source.ROOFLINE, 0.3)
    residual = nearest(residuals, batch.family, FLASH2, spec)
    if residual is None:
        return Estimates.uniform(base, Source.ROOFLINE, 0.2)
    elsewhere = C.ATTENTION_TRANSFER_SPREAD if spec.vendor == "nvidia" else C.OTHER_VENDOR_SPREAD
    return residual.corrected(base, flash2.columns(batch, spec, backward=backward), spec, elsewhere)


def _by_tables(batch: Batch, version: str, spec: GpuSpec, forward: Forward) -> Estimates | None:
    """The forward tables of this GPU, times what the backward takes more, less what a window leaves out."""
    whole = batch.as_family("attention")
    windowed = batch.dims["window"] > 0
    if windowed.any():
        dims = {**whole.dims, "window": np.zeros(len(batch))}
        whole = replace(whole, dims=dims)
    found = forward(whole)
    if found is None:
        return None
    factor = np.ones(len(batch))
    if windowed.any():
        factor *= flash2.base_us(batch.as_family("attention"), spec) / flash2.base_us(whole, spec)
    if batch.family == "attention":
        return Estimates(found.time_us * factor, found.source, found.spread, found.notes)
    times = BACKWARD_OVER_FORWARD[version]
    factor_note = f"only the forward was measured; the backward is taken as {times:g} times its time"
    notes = {i: joined(factor_note, found.notes.get(i, "")) for i in range(len(batch))}
    source = np.full(len(batch), int(Source.TRANSFERRED))
    spread = np.hypot(found.spread, C.ATTENTION_BACKWARD_SPREAD)
    return Estimates(found.time_us * factor * times, source, spread, notes)


NEW_INSTRUCTIONS = frozenset({"hopper", "blackwell"})
"""Generations with kernels of their own (FlashAttention-3, cuDNN, TensorRT's) that use the wide
asynchronous tensor cores; on others FlashAttention-2 is what there is."""

HALF_ONLY = frozenset({"flash", FLASH1, FLASH2, FLASH3, CUDNN})
"""Versions without kernels in fp32; torch takes the memory-efficient kernel there."""
FULL = frozenset({"fp32", "tf32", "fp64"})

NO_FLASH = frozenset({"maxwell", "pascal", "volta", "turing"})
"""Generations that FlashAttention-2 does not run on: torch falls back to the memory-efficient kernel."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How a version compares with the one it is timed by, forward and backward, and how sure that is."""

    forward: float
    backward: float
    spread: float


# Times as multiples of FlashAttention-2's: FlashAttention-2 paper (Dao 2023), figures 4 to 6, A100, heads
# of 64 and 128: xformers' cutlass kernel reaches 90 to 115 TFLOP/s and FlashAttention 100 to 130 where
# FlashAttention-2 reaches 170 to 225; backward 80 to 110 where it reaches 140 to 190.
AGAINST_FLASH2: Mapping[str, Reach] = {FLASH1: Reach(1.75, 1.75, 0.2), EFFICIENT: Reach(1.9, 1.9, 0.25)}

BACKWARD_OVER_FORWARD = C.by_name("BACKWARD_OVER_FORWARD")


FASTEST = CUDNN
"""What Transformer Engine and torch's ``scaled_dot_product_attention`` can pick on these generations."""
NO_CUDNN = NO_FLASH
"""Generations that cuDNN's fused attention does not run on, either (torch: compute capability 8.0 and up)."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """Why a kernel does not run on a GPU, and what does."""

    problem: str
    fix: str


def runs_wide(spec: GpuSpec) -> bool:
    """Whether a GPU has the wide tensor cores; Blackwell's boards with GDDR memory have Ampere's."""
    return Machine.of(spec, "fp32").wide


def impossible(version: str, spec: GpuSpec, dtype: str = "bf16") -> Impossible | None:
    """Why a version that was asked for does not run on a GPU or in a type; None where it does."""
    best = CUDNN if runs_wide(spec) else FLASH2
    if version in HALF_ONLY and dtype in FULL:
        return Impossible(
            f"its kernels compute in half precision, not in {dtype}", f"use {EFFICIENT} or eager"
        )
    if version == FLASH3 and spec.architecture not in ("hopper", "unknown"):
        return Impossible(f"FlashAttention-3 runs on Hopper only, not on {spec.name}", f"use {best}")
    if version == CUDNN and spec.vendor == "amd":
        return Impossible(f"cuDNN is NVIDIA's, and {spec.name} is not", f"use {FLASH2}")
    if version == CUDNN and spec.architecture in NO_CUDNN:
        return Impossible(f"cuDNN's fused attention needs Ampere or later, not {spec.name}", "use eager")
    return None


def version_on(asked: str, architecture: str, dtype: str = "bf16") -> str:
    """The version that runs on a GPU of that generation where ``asked`` was asked for."""
    asked = asked or FLASH2
    if dtype in FULL and asked in HALF_ONLY:
        return EFFICIENT
    if asked in (FLASH3, CUDNN) and architecture not in NEW_INSTRUCTIONS:
        asked = FLASH2
    if asked == FLASH2 and architecture in NO_FLASH:
        asked = EFFICIENT
    return asked
