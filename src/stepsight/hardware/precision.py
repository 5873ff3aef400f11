"""Which types a GPU's matrix units compute in, and what running another one there means."""

from __future__ import annotations

from stepsight.hardware.spec import GpuSpec

NEVER_EMULATED = frozenset({"fp8", "fp4"})
"""Types whose products fail to run without units of their own (Transformer Engine, torchao)."""
INSTEAD = {"fp8": ("bf16", "fp16"), "fp4": ("fp8", "bf16"), "bf16": ("fp16",), "fp16": (), "tf32": ()}
"""What people train in where a type is missing, best first."""


def has_units(gpu: GpuSpec, dtype: str) -> bool:
    """Whether products of a type run at a rate of their own; all others run at the fp32 rate."""
    return dtype in gpu.peak_tflops or dtype not in INSTEAD


def lack(gpu: GpuSpec, dtype: str) -> str:
    """What to say of a type without units: the hardware has none, or a file states no peak."""
    if gpu.source == "given":
        return f"the description of {gpu.name} states no {dtype} peak"
    return f"{gpu.name} has no {dtype} tensor cores" if dtype != "fp16" else f"{gpu.name} has no fast fp16"


def substitute(gpu: GpuSpec, dtype: str) -> str:
    """What to do instead."""
    other = next((d for d in INSTEAD.get(dtype, ()) if d in gpu.peak_tflops), "fp32")
    stated = f", or state gpu.peak_tflops.{dtype}" if gpu.source == "given" else ""
    return f"use {other}{stated}"


def emulated(gpu: GpuSpec, dtype: str) -> str:
    """The warning for a type that runs without units of its own."""
    if dtype == "tf32":
        return f"{lack(gpu, dtype)}: PyTorch runs such products in fp32"
    rate = f"products run at its fp32 rate, {rate_words(gpu, dtype)}"
    return f"{lack(gpu, dtype)}: {rate}; {substitute(gpu, dtype)}"


def rate_words(gpu: GpuSpec, dtype: str) -> str:
    """How much slower that is than the type that people train in there."""
    other = next((d for d in INSTEAD.get(dtype, ()) if d in gpu.peak_tflops), "")
    fp32 = gpu.peak_tflops["fp32"]
    if not other:
        return f"{fp32:g} TFLOP/s"
    return f"{fp32:g} TFLOP/s where {other} has {gpu.peak_tflops[other]:g}"
