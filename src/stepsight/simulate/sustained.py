"""Products under hours of load: what a GPU keeps of the clock that a short benchmark sees.

Tensor cores at full load draw more than the board's power limit, and the clock comes down. Kernel tables
are measured in bursts; training is not. Memory-bound kernels hardly feel it.
"""

from __future__ import annotations

from stepsight.hardware.spec import GpuSpec

SUSTAINED: dict[str, float] = {"hopper": 0.81, "blackwell": 0.85, "ampere": 0.95}
"""Share of the benchmark's rate by generation; 1 where not listed."""
FELT_BY = ("gemm", "attention")
"""Categories that run on tensor cores."""


def slowdown(gpu: GpuSpec, category: str) -> float:
    """How much longer kernels of a category take in training than in a benchmark."""
    return 1.0 / SUSTAINED.get(gpu.architecture, 1.0) if category in FELT_BY else 1.0
