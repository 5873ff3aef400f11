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


def request(
    platform: PlatformSpec, script: str, arguments: Sequence[str] = (), *, world: int = 0,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Capture a script (or module) for a platform; on all its GPUs unless ``world`` says otherwise."""
    return gpu_request(
        platform.gpu, script, arguments, world=world or platform.ranks, per_node=platform.gpus_per_node,
        module=module, warmup=warmup, steps=steps, assume=assume,
    )  # fmt: skip


def gpu_request(
    gpu: GpuSpec, script: str, arguments: Sequence[str] = (), *, world: int, per_node: int,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    return Request(
        script, list(arguments), "", 0, world, per_node, gpu.name,
        CAPABILITIES.get(gpu.architecture, DEFAULT_CAPABILITY), int(gpu.memory_bytes), gpu.sms,
        int(gpu.l2_mb * 2**20), module, warmup, steps, list(assume),
    )  # fmt: skip
