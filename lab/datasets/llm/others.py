"""``xtuner_a100_long``, ``amd_primus`` and ``litgpt_memory_a10g``."""

from __future__ import annotations

from typing import Any

from lab.datasets.llm.case import (
    NO_MODEL,
    Case,
    LacksError,
    Row,
    as_stated,
    catalogue_model,
    number,
    platform_name,
    required,
    whole,
)

XTUNER, PRIMUS, LITGPT = "xtuner_a100_long", "amd_primus", "litgpt_memory_a10g"


def xtuner(row: Row) -> Case:
    """ZeRO-3 with Ulysses (heads exchanged for parts of the sequence), one sequence per group."""
    context, gpus, sequence = whole(row, "sequence_parallel"), whole(row, "gpus"), whole(row, "seq")
    model = required(catalogue_model(row["model"]), NO_MODEL)
    data = gpus // context
    parallel: dict[str, Any] = {"data": data, "context": context, "zero": 3, "micro_batch": 1}
    if context > 1:
        parallel["context_kind"] = "all_to_all"
    stated = {
        "model": model,
        "sequence": sequence,
        "global_batch": data * whole(row, "micro_batch"),
        "training": {"precision": "bf16", "recompute": "full"},
        "parallel": parallel,
    }
    return Case(
        stated, "deepspeed", {"training": {"attention": "flash2"}},
        platform_name(gpus, 8, row["gpu"], "200G"),
        measured_ms=1e3 * sequence / context / float(row["tokens_s_gpu"]),
    )  # fmt: skip


def primus(row: Row) -> Case:
    """AMD's Primus (Megatron); pages that state no batch serve ratios between schedules only."""
    model = catalogue_model(row["model"])
    if model is None or not row["global_batch"] or not row["seq"]:
        raise LacksError("sequence or batch is not stated")
    gpus, nodes = whole(row, "gpus"), whole(row, "nodes")
    tensor, pipeline, expert = whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "ep", 1)
    parallel: dict[str, Any] = {
        "data": gpus // (tensor * pipeline), "tensor": tensor, "pipeline": pipeline,
        "micro_batch": whole(row, "micro_batch"),
    }  # fmt: skip
    if pipeline > 1:
        parallel["virtual_stages"] = whole(row, "vp", 1)
    if expert > 1:
        parallel["expert"] = expert
    training: dict[str, Any] = {"precision": "fp8" if "fp8" in row["precision"] else "bf16"}
    if "tensorwise" in row["precision"]:
        training["fp8_scaling"] = "current"
    return Case(
        as_stated(row, model, training, parallel), "megatron-2025",
        {"parallel": {"zero": 1}} if parallel["data"] > 1 else {},
        platform_name(gpus, gpus // nodes, row["gpu"], "400G"),
        measured_ms=number(row, "step_ms"), measured_gb=number(row, "max_memory_gb"),
        crashed="OOM" in row["note"],
    )  # fmt: skip


def _binary(gb: float | None) -> float | None:
    """Binary gigabytes: litgpt prints bytes / 1e9."""
    return None if gb is None else gb * 1e9 / 2**30


_RANKS = {"gemma-2b": 16, "phi-3-mini-4k": 8, "tiny-llama": 32}
"""Models whose files in litgpt's config_hub put adapters on all projections, and their rank; the others' have
rank 32 on queries and values."""


def litgpt(row: Row) -> Case:
    """Peak memory of fine-tuning on A10G: full, LoRA, QLoRA; bf16 throughout (bf16-true), no fp32 copies."""
    model = required(catalogue_model(row["model"]), NO_MODEL)
    gpus = whole(row, "gpus")
    parallel: dict[str, Any] = {"data": gpus, "micro_batch": whole(row, "micro_batch")}
    stated = {
        "model": model,
        "sequence": whole(row, "max_seq"),
        "batch_per_rank": whole(row, "micro_batch"),
        "training": {"precision": "bf16", "adapters": row["method"] if "lora" in row["method"] else "none"},
        "parallel": parallel,
    }
    settings: dict[str, Any] = {}
    if "lora" in row["method"]:
        targets = "all" if row["model"] in _RANKS else "attention"
        settings["training"] = {"adapter_targets": targets, "adapter_rank": _RANKS.get(row["model"], 32)}
    if gpus > 1 and row["method"] == "full":  # Lightning's FSDP strategy
        settings["parallel"] = {"zero": 3}
    return Case(
        stated, "litgpt-2024", settings, f"{gpus}xA10G-24G" if gpus > 1 else "1xA10G-24G",
        measured_gb=_binary(number(row, "peak_memory_gb")), allocated=True, crashed=row["fits"] == "no",
    )  # fmt: skip
