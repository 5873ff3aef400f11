"""Which fused attention kernel runs: FlashAttention 1, 2 or 3, cuDNN's, or the memory-efficient one.

A kernel's variant says so (`program.variants`); by default it is FlashAttention-2, which torch's
``scaled_dot_product_attention`` and the flash-attn package run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.machine import Machine
from stepsight.program.variants import CUDNN, EFFICIENT, FLASH1, FLASH2, FLASH3, SERVING

VERSIONS = (FLASH1, FLASH2, FLASH3, CUDNN, EFFICIENT)
"""What a workload may ask for. `SERVING` is for rows of the serving tables, whose stack is stated apart."""

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

BACKWARD_OVER_FORWARD: Mapping[str, float] = {FLASH3: 2.9, CUDNN: 2.8, SERVING: 3.05}
"""Backward over forward for kernels whose forward alone was measured: 2.5 times the FLOPs at 0.86 of the
rate (FlashAttention-3 paper, Shah et al. 2024, figures 5 and 6, H100, heads of 128, 16 k: 648 and
561 TFLOP/s; cuDNN 9 a little better backward)."""
SPREAD_BACKWARD = 0.15


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
