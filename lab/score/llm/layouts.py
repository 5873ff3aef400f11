"""``llm_a100_layouts.csv``: Llama 13B, 30B and 65B on 32 to 256 A100, by layout and kernel."""

from __future__ import annotations

from typing import Any

from lab.score.llm.rows import Case
from stepsight.collectives.site import SiteBandwidth

FILE = "llm_a100_layouts.csv"
GPUS_PER_NODE = 8
VOCAB = 128_000
"""Hagemann et al. 2023 (arXiv 2311.05610) train with a vocabulary of 128,000; the table's MFU agrees."""
_SIZES = {
    "13B": (40, 5120, 40, 13824),
    "30B": (60, 6656, 52, 17920),
    "65B": (80, 8192, 64, 22016),
}
_GBPS = {8: 70.0, 16: 35.0, 32: 17.0}
SITE = SiteBandwidth(256e6, {"all_gather": _GBPS, "reduce_scatter": _GBPS}, axes=("shard",))
"""What the replicas' collectives reach by nodes: half for every doubling, as in a network whose links between
switches are few. Read off 13B on 64 and 128 GPUs (8 and 16 nodes) and 30B on 256 (32 nodes)."""
_BATCH = {2048: 2048, 8192: 512}
_ATTENTION = {"torch": "eager", "fused": "fused", "flash_attentionv1.0.8": "flash1"}


def case(row: dict[str, str]) -> Case:
    """One row: ZeRO-1, bf16, 1F1B; recomputation of every layer or none."""

    def n(column: str) -> int:
        return int(float(row[column]))

    tensor, pipeline, gpus = n("tp"), n("pp"), n("gpus")
    kernel = row["kernel"]
    parallel: dict[str, Any] = {
        "data": gpus // (tensor * pipeline),
        "tensor": tensor,
        "pipeline": pipeline,
        "zero": int(gpus > tensor * pipeline),
        "micro_batch": n("micro_batch"),
    }
    if row["sequence_parallel"] == "True" and tensor > 1:
        parallel["sequence_parallel"] = True
    name = f"{row['model']} s{row['seq']} g{gpus} mb{row['micro_batch']} t{tensor} p{pipeline} {kernel}"
    if row["status"] not in ("ok", "OOM Error"):
        return Case(name, None, lacks=f"did not run: {row['status']}")
    layers, hidden, heads, ffn = _SIZES[row["model"]]
    document = {
        "kind": "transformer",
        "family": "llama",
        "name": row["model"],
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn": ffn,
        "vocab": VOCAB,
        "sequence": n("seq"),
        "global_batch": _BATCH[n("seq")],
        "training": {
            "precision": "bf16",
            "framework": "scaling",
            "attention": _ATTENTION.get(kernel, "flash2"),
            "recompute": "full" if row["checkpointing"] == "every_layer" else "none",
            "fused_norm": "RMS" in kernel,
        },
        "parallel": parallel,
    }
    return Case(
        name,
        document,
        f"{gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}x{row['gpu']}-200G",
        measured_ms=1e3 * float(row["step_s"]) if row["status"] == "ok" else None,
        crashed=row["status"] != "ok",
        group=row["sheet"],
        site=SITE,
    )
