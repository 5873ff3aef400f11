"""How much of a GPU's memory a job can use: the one figure that every verdict on memory goes by."""

from __future__ import annotations

BYTES_PER_GB = 2**30
"""Data sheets, and so `GpuSpec.memory_gb`, state memory in binary gigabytes."""
USABLE_SHARE = 0.96
"""Of a GPU's memory, what a job's tensors can take before the CUDA context and NCCL's buffers fill it:
between 0.94 and 0.98, which part best what ran from what did not (nine groups of an H100 sweep, four of
published layouts)."""


def usable_bytes(memory_gb: float) -> float:
    """What a job's tensors may take of a GPU whose data sheet states ``memory_gb``."""
    return memory_gb * BYTES_PER_GB * USABLE_SHARE
