"""Sweeps over layouts: ``gpt_a100_*``, ``llm_a100_layouts`` and ``llm_h100_sweep``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lab.datasets.llm.case import Case, LacksError, Row, number, platform_name, whole
from stepsight.collectives.site import SiteBandwidth

GPT_ONE_NODE, GPT_NODES = "gpt_a100_single_node", "gpt_a100_multi_node"
A100_LAYOUTS, H100_SWEEP = "llm_a100_layouts", "llm_h100_sweep"
GPUS_PER_NODE = 8

# --- gpt_a100_*: Megatron-DeepSpeed GPT, fp16, full recomputation, 1F1B ---


def gpt(row: Row) -> Case:
    """One row. On one node the time is that of selective recomputation: rows without tensor parallelism that
    differ in layers only would need 91 % of the tensor cores' peak for the full one."""
    data, tensor = whole(row, "data parallelism"), whole(row, "tensor parallelism")
    pipeline = whole(row, "pipeline parallelism")
    ranks = data * tensor * pipeline
    stated = {
        "family": "megatron",
        "layers": whole(row, "# layers"),
        "hidden": whole(row, "hidden size"),
        "heads": whole(row, "attention heads"),
        "vocab": 50257,
        "sequence": whole(row, "sequence length"),
        "global_batch": whole(row, "global batch"),
        "training": {"precision": "fp16", "recompute": "selective" if ranks <= GPUS_PER_NODE else "full"},
        "parallel": {
            "data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": whole(row, "micro batch"),
        },
    }  # fmt: skip
    return Case(
        stated,
        "megatron-deepspeed",
        {"training": {"attention": "fused"}},
        platform_name(ranks, GPUS_PER_NODE, "A100-SXM4-80G", "200G"),
        measured_ms=number(row, "iteration time (ms)"),
    )


# --- llm_a100_layouts: Llama 13B, 30B and 65B on 32 to 256 A100, by layout and kernel ---

_VOCAB = 128_000
"""Hagemann et al. 2023 (arXiv 2311.05610) train with a vocabulary of 128,000; the table's MFU agrees."""
_SIZES = {"13B": (40, 5120, 40, 13824), "30B": (60, 6656, 52, 17920), "65B": (80, 8192, 64, 22016)}
_BATCH = {2048: 2048, 8192: 512}
_ATTENTION = {"torch": "eager", "fused": "fused", "flash_attentionv1.0.8": "flash1"}


def a100_layout(row: Row) -> Case:
    """One row: ZeRO-1, bf16, 1F1B; recomputation of every layer or none."""
    tensor, pipeline, gpus = whole(row, "tp"), whole(row, "pp"), whole(row, "gpus")
    kernel, sequence = row["kernel"], whole(row, "seq")
    if row["status"] not in ("ok", "OOM Error"):
        raise LacksError("did not run for another reason than memory")
    if row["model"] not in _SIZES or sequence not in _BATCH:
        raise LacksError("sizes or batch are not stated")
    layers, hidden, heads, ffn = _SIZES[row["model"]]
    parallel: dict[str, Any] = {
        "data": gpus // (tensor * pipeline), "tensor": tensor, "pipeline": pipeline,
        "micro_batch": whole(row, "micro_batch"),
    }  # fmt: skip
    if tensor > 1:
        parallel["sequence_parallel"] = row["sequence_parallel"] == "True"
    stated = {
        "family": "llama", "name": row["model"], "layers": layers, "hidden": hidden, "heads": heads,
        "ffn": ffn, "vocab": _VOCAB, "sequence": sequence, "global_batch": _BATCH[sequence],
        "training": {
            "precision": "bf16",
            "attention": _ATTENTION.get(kernel, "flash2"),
            "recompute": "full" if row["checkpointing"] == "every_layer" else "none",
            "fused_norm": "RMS" in kernel,
        },
        "parallel": parallel,
    }  # fmt: skip
    return Case(
        stated,
        "scaling",
        {"parallel": {"zero": int(gpus > tensor * pipeline)}},
        platform_name(gpus, GPUS_PER_NODE, row["gpu"], "200G"),
        measured_ms=1e3 * float(row["step_s"]) if row["status"] == "ok" else None,
        crashed=row["status"] != "ok",
    )


# --- llm_h100_sweep: nanotron's benchmark of Llama-like models on 8 to 512 H100 ---

_GATHERED = {2: 185.0, 4: 119.0, 8: 69.0, 16: 55.0, 32: 28.0, 64: 11.0}
CLUSTER = SiteBandwidth(
    256e6,
    {
        "all_reduce": {2: 362.0, 4: 160.0, 8: 100.0, 16: 85.0, 32: 65.0, 64: 33.0},
        "all_gather": _GATHERED,
        "reduce_scatter": _GATHERED,
    },
)
"""What the cluster's own test measured at 256 MB over all GPUs of its nodes, by nodes (mean)."""
SLOW = 2.0
"""A run is slow where it takes more than this many times as long as the second-fastest of its neighbours,
pipeline bubbles removed. Neighbours are runs of the same model and nodes that differ in one setting: twice or
half the micro-batch, the other ZeRO stage, or a factor of two moved between data, tensor and pipeline
parallelism (tensor groups inside a node and over nodes are not compared). The rule uses measured times alone.
It marks about a quarter of the runs on several nodes, and 2 of 69 on one node, where nothing is known to be
slow."""


def h100_run(row: Row) -> Case:
    """One row; shapes stand in its columns."""
    tensor, pipeline, data = whole(row, "tp"), whole(row, "pp"), whole(row, "dp")
    zero = whole(row, "zero") if data > 1 else 0
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    stated = {
        "family": "llama", "name": row["model"], **{name: whole(row, name) for name in names},
        "tied": row["model"] in ("1B", "3B"),
        "sequence": whole(row, "seq"),
        "batch_per_rank": whole(row, "micro_batch") * whole(row, "grad_acc"),
        "training": {"precision": "bf16"},
        "parallel": {
            "data": data, "tensor": tensor, "pipeline": pipeline, "zero": zero,
            "micro_batch": whole(row, "micro_batch"),
        },
    }  # fmt: skip
    parallel: dict[str, Any] = {"sequence_parallel": True, "async_tensor": True} if tensor > 1 else {}
    if zero:
        parallel["overlap_gradients"] = False
    return Case(
        stated,
        "nanotron",
        {"parallel": parallel} if parallel else {},
        platform_name(whole(row, "gpus"), GPUS_PER_NODE, row["gpu"], "400G"),
        measured_ms=float(row["step_ms"]) if row["status"] == "ok" else None,
        measured_gb=number(row, "memory_gb"),
        crashed=row["status"] != "ok",
        site=CLUSTER if whole(row, "nodes") > 1 else None,
    )


def mark_slow(cases: Sequence[Case]) -> list[Case]:
    """The sweep's runs, with those marked that `SLOW` leaves out."""
    known: dict[tuple[object, ...], float] = {}
    for case in cases:
        if case.measured_ms is not None:
            key = (case.group, *_layout(case))
            known[key] = min(_steady_ms(case), known.get(key, float("inf")))

    def slow(case: Case) -> bool:
        if case.measured_ms is None:
            return False
        others = [(case.group, *other) for other in _neighbours(_layout(case))]
        times = sorted(known[other] for other in others if other in known)
        return len(times) > 1 and _steady_ms(case) > SLOW * times[1]

    return [replace(case, slow=slow(case)) for case in cases]


def _parallel(case: Case) -> Any:
    return (case.stated or {})["parallel"]


def _layout(case: Case) -> tuple[int, ...]:
    """Data, tensor, pipeline and micro-batch as powers of two, and ZeRO's stage."""
    parallel = _parallel(case)
    axes = (parallel[name] for name in ("data", "tensor", "pipeline", "micro_batch"))
    return (*(round(math.log2(axis)) for axis in axes), int(parallel["zero"]))


def _neighbours(layout: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Layouts that differ in one setting."""
    *axes, micro, zero = layout
    found = [(*axes, micro + 1, zero), (*axes, micro - 1, zero), (*axes, micro, 1 - zero)]
    for less, more in itertools.permutations(range(3), 2):
        moved = [axis + (i == more) - (i == less) for i, axis in enumerate(axes)]
        crosses = (2 ** moved[1] > GPUS_PER_NODE) != (2 ** axes[1] > GPUS_PER_NODE)
        if moved[less] >= 0 and not crosses:
            found.append((*moved, micro, zero))
    return found


def _steady_ms(case: Case) -> float:
    """The measured step without the pipeline's fill and drain: m of m + p - 1 slots of 1F1B."""
    parallel = _parallel(case)
    chunks = int((case.stated or {})["batch_per_rank"] // parallel["micro_batch"])
    return float(case.measured_ms or 0.0) * chunks / (chunks + int(parallel["pipeline"]) - 1)
