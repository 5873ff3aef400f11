"""Every figure of the simulation that was chosen or read off runs, with unit, basis and effect.

The slowdowns of work side by side belong to a platform and stand in `collectives.constants`.
"""

from __future__ import annotations

from stepsight.basis import Basis

SETTLED_US = 0.05
MOST_WALKS = 12
SHARED_LINK = 2.0
FILLS_US = 50.0
SUSTAINED: dict[str, float] = {
    "ampere": 0.92, "ampere fp16": 0.94, "hopper": 0.81, "hopper fp8": 0.72,
    "blackwell": 0.8, "B200-SXM-180G": 0.63, "GB200-186G": 0.73, "GB300-288G": 0.9, "B300-SXM-288G": 0.71,
    "cdna": 0.8, "cdna2": 0.8, "cdna3": 0.88, "cdna4": 0.63,
}  # fmt: skip
CLOCK_BY_POWER = 0.45

BASES = {
    "SETTLED_US": Basis(
        "µs that a launch still moves", "chosen: below any clock's resolution", "when the walk has settled"
    ),
    "MOST_WALKS": Basis(
        "walks", "chosen: overlap can flip at an edge; the mean of the flips is taken then", "simulation time"
    ),
    "SHARED_LINK": Basis(
        "times longer", "two transfers on one link get half of it each", "collectives at the same time"
    ),
    "FILLS_US": Basis(
        "µs that a kernel takes alone",
        "kernels beside others in the traces that COMPUTE_BESIDE_COMPUTE was read off (TorchRec DLRM on"
        " 4×V100, production DLRM on A100): those above had 2 to 32 waves of blocks, so they fill the GPU",
        "compute beside compute", runs=2,
    ),
    "SUSTAINED": Basis(
        "share of the benchmark's rate, by generation and type, board or generation; 1 where not listed",
        "Hopper: rows of a public sweep bound by products, all four models in sight; Ampere: InternEvo's"
        " rows on one node; the others: `lab fit llm`, over all sources with such GPUs (fp8 on Hopper:"
        " NeMo, torchtitan, llm-foundry; Blackwell: NeMo, SimuMax; fp16 on Ampere: Megatron-DeepSpeed)."
        " AMD, no rows: CDNA 4 loses what B200 does, whose models serve it (AMD, December 2025: Llama-3 8B"
        " and 70B in bf16 1.02 and 1.16 times B200, taken to run cuDNN's attention); CDNA 3 what H100 loses"
        " between a long benchmark (SemiAnalysis, December 2024: 720 TFLOP/s) and training; CDNA 2 by MPT-7B"
        " on MI250 at 0.39 of peak with recomputation (Databricks, 2023: 0.8 of an A100-40GB, which"
        " its tables have at 157 TFLOP/s, and 1.13 times that with FlashAttention-2)",
        "products and attention of language models", runs=8,
    ),
    "CLOCK_BY_POWER": Basis(
        "power of the power limit that the clock follows",
        "power goes with clock times voltage squared, and voltage with clock",
        "boards with another power limit",
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
