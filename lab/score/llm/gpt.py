"""``gpt_a100_*.csv``: Megatron-DeepSpeed GPT, fp16, full recomputation, 1F1B, on A100s."""

from __future__ import annotations

from lab.score.llm.rows import Case

SINGLE, MULTI = "gpt_a100_single_node.csv", "gpt_a100_multi_node.csv"
GPUS_PER_NODE = 8
"""GPUs of a node. Rows on one node take the time of selective recomputation: rows without tensor parallelism
that differ in layers only would need 91 % of the tensor cores' peak for the full one that the file is said
to have."""


def case(row: dict[str, str]) -> Case:
    def n(column: str) -> int:
        return int(float(row[column]))

    data, tensor, pipeline = n("data parallelism"), n("tensor parallelism"), n("pipeline parallelism")
    ranks = data * tensor * pipeline
    document = {
        "kind": "transformer",
        "family": "megatron",
        "layers": n("# layers"),
        "hidden": n("hidden size"),
        "heads": n("attention heads"),
        "vocab": 50257,
        "sequence": n("sequence length"),
        "global_batch": n("global batch"),
        "training": {
            "precision": "fp16",
            "recompute": "selective" if ranks <= GPUS_PER_NODE else "full",
            "framework": "megatron-deepspeed",
            "attention": "fused",
        },
        "parallel": {"data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": n("micro batch")},
    }
    nodes = -(-ranks // GPUS_PER_NODE)
    name = f"{min(ranks, GPUS_PER_NODE)}xA100-SXM4-80G"
    measured = row["iteration time (ms)"]
    return Case(
        f"h{row['hidden size']} l{row['# layers']} s{row['sequence length']} "
        f"b{row['global batch']}/{row['micro batch']} t{tensor} d{data} p{pipeline}",
        document,
        name if nodes == 1 else f"{nodes}x{name}-200G",
        measured_ms=float(measured) if measured else None,
        group=f"h{row['hidden size']} l{row['# layers']}",
        fit_group=f"gpt h{row['hidden size']} l{row['# layers']} on {ranks}",
    )
