"""``llm_h100_sweep.csv``: nanotron's benchmark of Llama-like models on 8 to 512 H100."""

from __future__ import annotations

from typing import Any

from stepsight.collectives.site import SiteBandwidth
from stepsight.validate.llm.rows import Case

FILE = "llm_h100_sweep.csv"
GPUS_PER_NODE, NODES = 8, 64
SITE = SiteBandwidth(
    256e6,
    {
        "all_gather": {2: 136.0, 4: 45.0},
        "reduce_scatter": {2: 136.0, 4: 45.0},
    },
    hop_us=250.0,
    stage_stall_us={64: 1.4e6},
)
"""Tensor groups over two and four nodes of that cluster, from the 8B rows without a pipeline on 8 nodes that
differ in micro-batch: 0.5 and 0.9 ms a collective before the first byte, then 136 and 54 GB/s (the site's own
all_gather figures at 256 MB are 185 and 119, with a wide range). On 64 nodes every row with a pipeline loses
1.3 to 1.6 s a micro-batch (dp8 tp8 pp8, dp64 tp2 pp4, dp4 tp4 pp32 … of the 8B model)."""


def case(row: dict[str, str]) -> Case:
    """One row; shapes stand in its columns."""

    def n(column: str) -> int:
        return int(float(row[column]))

    tensor, pipeline, data = n("tp"), n("pp"), n("dp")
    parallel: dict[str, Any] = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "zero": n("zero") if data > 1 else 0,
        "micro_batch": n("micro_batch"),
    }
    if tensor > 1:
        parallel |= {"sequence_parallel": True, "async_tensor": True}
    sizes = {name: n(name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    document = {
        "kind": "transformer",
        "family": "llama",
        "name": row["model"],
        **sizes,
        "sequence": n("seq"),
        "batch_per_rank": n("micro_batch") * n("grad_acc"),
        "tied": row["model"] in ("1B", "3B"),
        "training": {"precision": "bf16", "framework": "nanotron"},
        "parallel": parallel,
    }
    return Case(
        f"{row['model']} n{row['nodes']} dp{data} tp{tensor} pp{pipeline} z{row['zero']} "
        f"mb{row['micro_batch']}",
        document,
        f"{NODES}x{GPUS_PER_NODE}x{row['gpu']}-400G",
        measured_ms=float(row["step_ms"]) if row["status"] == "ok" else None,
        measured_gb=float(row["memory_gb"]) if row["memory_gb"] else None,
        crashed=row["status"] != "ok",
        group=f"{row['model']} on {row['nodes']} nodes",
        site=SITE,
    )
