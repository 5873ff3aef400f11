"""Products under hours of load: what a GPU keeps of the clock that a short benchmark sees.

Tensor cores at full load draw more than the board's power limit, and the clock comes down. Kernel tables
are measured in bursts; training is not. Memory-bound kernels hardly feel it.
"""

from __future__ import annotations

from stepsight.hardware.spec import GpuSpec
from stepsight.simulate.constants import CLOCK_BY_POWER, SUSTAINED

TENSOR_CORE_CATEGORIES = ("gemm", "attention")
"""Categories that run on tensor cores."""


def slowdown(gpu: GpuSpec, category: str, dtype: str) -> float:
    """How much longer kernels of a category take in training than in a benchmark."""
    if category not in TENSOR_CORE_CATEGORIES:
        return 1.0
    share = sustained_share(sustained_key(gpu, dtype))
    return 1.0 / (share * float(gpu.power_share**CLOCK_BY_POWER))


def sustained_key(gpu: GpuSpec, dtype: str) -> str:
    """Under which name a GPU's share of its benchmark clock stands: by generation and type, else by board."""
    for key in (f"{gpu.architecture} {dtype}", gpu.name):
        if key in SUSTAINED:
            return key
    return gpu.architecture


def sustained_share(key: str) -> float:
    """The share of the benchmark's clock; 1 where nothing is known."""
    return SUSTAINED.get(key, 1.0)
