"""The GPU that a script is captured for, as torch would describe it."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.capture.request import Request
from stepsight.hardware.spec import GpuSpec, PlatformSpec

CAPABILITIES = {
    "pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0),
    "blackwell": (10, 0),
}  # fmt: skip
"""Compute capability by architecture (NVIDIA's table). Boards of one architecture differ in the minor number
only, which none of torch's choices seen here asks for."""
DEFAULT_CAPABILITY = (8, 0)


def capability(gpu: GpuSpec) -> tuple[int, int]:
    return CAPABILITIES.get(gpu.architecture, DEFAULT_CAPABILITY)


def memory_bytes(gpu: GpuSpec) -> int:
    return int(gpu.memory_bytes)


def l2_bytes(gpu: GpuSpec) -> int:
    return int(gpu.l2_mb * 2**20)


def request(
    platform: PlatformSpec, script: str, arguments: Sequence[str] = (), *, world: int = 0,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Capture a script (or module) for a platform; on all its GPUs unless ``world`` says otherwise."""
    gpu = platform.gpu
    return Request(
        script, list(arguments), "", 0, world or platform.ranks, platform.gpus_per_node, gpu.name,
        capability(gpu), memory_bytes(gpu), gpu.sms, l2_bytes(gpu), module, warmup, steps, list(assume),
    )  # fmt: skip
