"""Products under hours of load: what a GPU keeps of the clock that a short benchmark sees.

Tensor cores at full load draw more than the board's power limit, and the clock comes down. Kernel tables
are measured in bursts; training is not. Memory-bound kernels hardly feel it.
"""

from __future__ import annotations

from stepsight.hardware.spec import GpuSpec
from stepsight.simulate.constants import CLOCK_BY_POWER, HALF_OF_AMPERE, SUSTAINED

FELT_BY = ("gemm", "attention")
"""Categories that run on tensor cores."""


def slowdown(gpu: GpuSpec, category: str, dtype: str) -> float:
    """How much longer kernels of a category take in training than in a benchmark."""
    if category not in FELT_BY:
        return 1.0
    usual = SUSTAINED.get(gpu.name, SUSTAINED.get(gpu.architecture, 1.0))
    share = HALF_OF_AMPERE.get((gpu.architecture, dtype), usual)
    return 1.0 / (share * float(gpu.power_share**CLOCK_BY_POWER))
