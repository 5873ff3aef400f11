"""``llm_h100_sweep.csv``: nanotron's benchmark of Llama-like models on 8 to 512 H100."""

from __future__ import annotations

from typing import Any

from stepsight.validate.llm.rows import Case

FILE = "llm_h100_sweep.csv"
GPUS_PER_NODE = 8


def case(row: dict[str, str]) -> Case:
    """One row; shapes stand in its columns."""

    def n(column: str) -> int:
        return int(float(row[column]))

    tensor, pipeline, zero = n("tp"), n("pp"), n("zero")
    parallel: dict[str, Any] = {
        "data": n("dp"),
        "tensor": tensor,
        "pipeline": pipeline,
        "zero": zero,
        "micro_batch": n("micro_batch"),
    }
    if tensor > 1:
        parallel |= {"sequence_parallel": True, "async_tensor": True}
    document = {
        "kind": "transformer",
        "family": "llama",
        "name": row["model"],
        "layers": n("layers"),
        "hidden": n("hidden"),
        "heads": n("heads"),
        "kv_heads": n("kv_heads"),
        "ffn": n("ffn"),
        "vocab": n("vocab"),
        "sequence": n("seq"),
        "global_batch": n("global_batch"),
        "tied": row["model"] in ("1B", "3B"),
        "training": {"precision": "bf16", "framework": "nanotron"},
        "parallel": parallel,
    }
    nodes = n("nodes")
    name = f"{min(n('gpus'), GPUS_PER_NODE)}x{row['gpu']}"
    return Case(
        f"{row['model']} n{nodes} dp{row['dp']} tp{row['tp']} pp{row['pp']} z{row['zero']} "
        f"mb{row['micro_batch']}",
        document,
        name if nodes == 1 else f"{nodes}x{name}-400G",
        measured_ms=float(row["step_ms"]) if row["status"] == "ok" else None,
        measured_gb=float(row["memory_gb"]) if row["memory_gb"] else None,
        crashed=row["status"] != "ok",
        group=row["model"],
    )
