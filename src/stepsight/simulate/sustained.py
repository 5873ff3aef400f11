"""Products under hours of load: what a GPU keeps of the clock that a short benchmark sees.

Tensor cores at full load draw more than the board's power limit, and the clock comes down. Kernel tables
are measured in bursts; training is not. Memory-bound kernels hardly feel it.
"""

from __future__ import annotations

from stepsight.hardware.spec import GpuSpec

SUSTAINED: dict[str, float] = {"ampere": 0.92, "hopper": 0.81, "blackwell": 0.85, "B200-SXM-180G": 0.72}
"""Share of the benchmark's rate by board or generation; 1 where not listed. Hopper: 1B and 8B rows of
llm_h100_sweep.csv that are bound by products; Ampere: InternEvo's rows on one node; Blackwell: NeMo's dense
models on GB200 and GB300; B200 (1,000 W, air-cooled): SimuMax's Llama rows."""
CLOCK_BY_POWER = 0.45
"""The clock follows the power limit to this power: power goes with clock times voltage squared, and voltage
with clock."""
FELT_BY = ("gemm", "attention")
"""Categories that run on tensor cores."""


HALF_OF_AMPERE = {("ampere", "fp16"): 0.95}
"""The same by generation and type: A100's fp16 tables come from profiled operators of real layers
(megatron_ops_fp16.parquet), its bf16 tables from bursts."""


def slowdown(gpu: GpuSpec, category: str, dtype: str) -> float:
    """How much longer kernels of a category take in training than in a benchmark."""
    if category not in FELT_BY:
        return 1.0
    usual = SUSTAINED.get(gpu.name, SUSTAINED.get(gpu.architecture, 1.0))
    share = HALF_OF_AMPERE.get((gpu.architecture, dtype), usual)
    return 1.0 / (share * float(gpu.power_share**CLOCK_BY_POWER))
