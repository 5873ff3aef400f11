"""``llm_h100_sweep.csv``: nanotron's benchmark of Llama-like models on 8 to 512 H100."""

from __future__ import annotations

from typing import Any

from lab.score.llm.rows import Case
from stepsight.collectives.site import SiteBandwidth

FILE = "llm_h100_sweep.csv"
GPUS_PER_NODE, NODES = 8, 64
REPLICAS = SiteBandwidth(
    256e6,
    {
        "all_reduce": {2: 362.0, 4: 160.0, 8: 100.0, 16: 85.0},
        "all_gather": {2: 185.0, 4: 119.0, 8: 80.0, 16: 66.0},
        "reduce_scatter": {2: 182.0, 4: 116.0, 8: 80.0, 16: 66.0},
    },
    axes=("data", "shard"),
    node_share=0.45,
)
"""What that cluster measured at 256 MB over all GPUs of so many nodes (mean); its figures for 32 and 64
nodes, 28 and 11 GB/s, are a quarter of what the rows of 8B on 64 nodes without a pipeline show, and
all_gather on 8 and 16 nodes is raised by a fifth to what the rows show. ``node_share``: the 1B, 3B and 8B
rows on 16 nodes without a pipeline, ZeRO-1, tensor groups of 1, 2, 4 and 8."""
_OVER_NODES = {2: 300.0, 4: 160.0}
SITE = SiteBandwidth(
    256e6, {"all_gather": _OVER_NODES, "reduce_scatter": _OVER_NODES}, hop_us=540.0, also=REPLICAS
)
"""Tensor groups over four nodes reach what the cluster measured for all_reduce at 256 MB, those over two
nodes 300 GB/s, after 0.54 ms for every doubling of the nodes: 66 rows without a pipeline. The rows of 3B, 8B
and 80B alone give the same."""


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
    if data > 1 and n("zero"):
        parallel["overlap_gradients"] = False
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
    group = f"{row['model']} on {row['nodes']} nodes"
    return Case(
        f"{row['model']} n{row['nodes']} dp{data} tp{tensor} pp{pipeline} z{row['zero']} "
        f"mb{row['micro_batch']}",
        document,
        f"{NODES}x{GPUS_PER_NODE}x{row['gpu']}-400G",
        measured_ms=float(row["step_ms"]) if row["status"] == "ok" else None,
        measured_gb=float(row["memory_gb"]) if row["memory_gb"] else None,
        crashed=row["status"] != "ok",
        group=group,
        site=SITE,
    )
