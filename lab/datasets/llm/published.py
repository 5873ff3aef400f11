"""``other_training``: throughput tables that projects publish, as far as their rows say enough.

A reader returns a `Case` without its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab.datasets.llm.case import (
    NO_GPU,
    NO_MODEL,
    Case,
    LacksError,
    Row,
    as_stated,
    catalogue_gpu,
    catalogue_model,
    number,
    platform_name,
    required,
    whole,
)
from lab.datasets.llm.nvidia import (
    deep_learning_examples,
    jax,
    joined_platform,
    korthikanti,
    nemo,
    products,
    stated_axes,
)

OTHER_TRAINING = "other_training"


def case(row: Row) -> Case:
    """One row, by the table it came from."""
    measured_ms = required(number(row, "iter_time_ms"), "no iteration time")
    automodel = "automodel" in f"{row['file']} {row['source']}".lower()
    reader = _automodel if automodel else _READERS.get(row["file"])
    reader = required(reader, "another framework or no language model")
    return replace(reader(row), measured_ms=measured_ms)


_FOUNDRY_GPUS = {
    "a100_40gb": "A100-SXM4-40G", "a100_80gb": "A100-SXM4-80G", "h100_80gb": "H100-SXM-80G",
}  # fmt: skip


def _llmfoundry(row: Row) -> Case:
    """MPT by Composer's FSDP: Triton's flash attention with ALiBi, as fast as the first version."""
    gpu = required(_FOUNDRY_GPUS.get(row["gpu"]), NO_GPU)
    fields = dict(re.findall(r"(\w+)=(\w+)", row["parallelism"]))
    gpus = whole(row, "gpus")
    parallel: dict[str, Any] = {"data": gpus, "zero": 3, "micro_batch": whole(row, "micro_batch")}
    if "SHARD_GRAD_OP" in row["parallelism"]:
        parallel["reshard"] = False
    training = {
        "precision": "fp8" if "fp8" in row["precision"] else "bf16",
        "recompute": "full" if fields.get("act_ckpt") == "True" else "none",
        "master_weights": not row["precision"].startswith("amp"),
    }
    stated = as_stated(row, row["model"].lower(), training, parallel)
    platform = platform_name(gpus, 8, gpu, "400G" if "H100" in gpu else "200G")
    return Case(stated, "llm-foundry", {"training": {"attention": "flash1"}}, platform)


def _internevo(row: Row) -> Case:
    p = row["parallelism"]
    tensor, zero = int(re.findall(r"tp=(\d+)", p)[0]), int(re.findall(r"zero1=(-?\d+)", p)[0])
    micro_num = int(re.findall(r"micro_num=(\d+)", p)[0])
    gpus, batch = whole(row, "gpus"), whole(row, "global_batch")
    data = gpus // tensor
    parallel: dict[str, Any] = {
        "data": data, "tensor": tensor, "zero": 1, "micro_batch": batch // data // micro_num,
    }  # fmt: skip
    if 0 < zero < data:
        parallel["shard_group"] = zero
    training = {"precision": "bf16", "recompute": "full" if "act_ckpt=t" in p.lower() else "none"}
    stated = as_stated(row, "internlm-7b", training, parallel)
    settings = {"training": {"attention": "flash1"}, "parallel": {"bucket_mb": 512.0}}
    return Case(stated, "internevo", settings, platform_name(gpus, 8, "A100-SXM4-80G", "50G"))


_ONE_DENSE_LAYER = {"experts": 256, "active": 8, "ffn": 2048, "shared_ffn": 2048, "dense_layers": 1}
"""DeepSeek-V3's experts after one dense layer instead of three, as in SimuMax's runs of four layers."""
_SIMUMAX = {
    "llama3_70b": "llama3-70b", "llama3_405b": "llama3.1-405b", "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}  # fmt: skip


def _simumax(row: Row) -> Case:
    """Settings as the notes of the table say: heads are exchanged for parts of the sequence."""
    axes = {k: int(v) for k, v in re.findall(r"(TP|PP|DP|EP|CP|micro-batches)=(\d+)", row["parallelism"])}
    named = re.findall(r"(\w+) truncated to (\d+) layers", row["model"])
    if not named or named[0][0] not in _SIMUMAX:
        raise LacksError("sizes are not stated")
    model, layers = _SIMUMAX[named[0][0]], int(named[0][1])
    parallel: dict[str, Any] = {
        "data": axes["DP"], "tensor": axes["TP"], "pipeline": axes["PP"], "context": axes["CP"],
        "micro_batch": 1,
    }  # fmt: skip
    if axes["PP"] > 1:
        parallel["virtual_stages"] = 1
    if axes["EP"] > 1:
        parallel["expert"] = axes["EP"]
    stated = as_stated(row, model, {"precision": "bf16"}, parallel, layers=layers)
    if model == "deepseek-v3":
        stated |= {"moe": _ONE_DENSE_LAYER, "mtp_layers": 0}
    several = axes["DP"] * axes["CP"] > 1
    more: dict[str, Any] = {"overlap_gradients": False, "prefetch": False, "zero": 1} if several else {}
    if axes["TP"] > 1:
        more["sequence_parallel"] = True
    if axes["CP"] > 1:
        more["context_kind"] = "all_to_all"
    settings = {"training": {"attention": "cudnn"}, "parallel": more}
    return Case(stated, "megatron-2025", settings, "8xB200-SXM-180G")


_HBM2E = ("gpu.memory_gb=96", "gpu.memory_gbps=2400", "gpu.power_w=500")
"""torchtitan's H100 with HBM2e at 500 W."""


def _torchtitan(row: Row) -> Case:
    p = row["parallelism"]
    model = row["model"].lower().replace("llama3.1-8b", "llama3-8b").replace("llama3.1-70b", "llama3-70b")
    axes = {k: int(v) for k, v in re.findall(r"(FSDP|TP|PP|CP)(\d+)", p)}
    gpus, batch = whole(row, "gpus"), whole(row, "global_batch")
    tensor, pipeline, context = axes.get("TP", 1), axes.get("PP", 1), axes.get("CP", 1)
    data = gpus // (tensor * pipeline * context)
    parallel: dict[str, Any] = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context}
    if pipeline > 1:  # torchtitan's default: as many micro-batches as the pipeline's degree
        parallel["micro_batch"] = max(1, batch // data // pipeline)
        if "Interleaved" in p:
            parallel["virtual_stages"] = 2
    else:
        parallel["micro_batch"] = batch // data
    if data * context > 1:
        parallel["zero"] = 3
        if "HSDP" in p:
            parallel["shard_group"] = 8
    if tensor > 1:
        parallel["async_tensor"] = "AsyncTP" in p
    training = {
        "precision": "fp8" if "fp8" in row["precision"] else "bf16",
        "recompute": "full" if "fullAC" in p else "none" if "No AC" in p else "selective",
        "compile": "eager" not in p,
    }
    if "rowwise" in row["precision"]:
        training["fp8_scaling"] = "row"
    stated = as_stated(row, model, training, parallel)
    settings = {"parallel": {"sequence_parallel": True}} if tensor > 1 else {}
    platform = platform_name(gpus, 8, "H100-SXM-80G", "400G")
    overrides = _HBM2E if "HBM2e" in row["gpu"] else ()
    return Case(stated, "torchtitan-2025", settings, platform, overrides)


_TUNING = re.compile(r"[ _-]*\b(?:q?lora|peft|sft|finetune)\b", re.IGNORECASE)


def _automodel(row: Row) -> Case:
    """NeMo Automodel: Hugging Face's models under FSDP2, of which a row may state groups smaller than all."""
    model = required(catalogue_model(_TUNING.sub("", row["model"])), NO_MODEL)
    gpu = required(catalogue_gpu(row["gpu"]), NO_GPU)
    axes, gpus, batch = stated_axes(row), whole(row, "gpus"), whole(row, "global_batch")
    tensor, pipeline, context = (axes.get(name, 1) for name in ("TP", "PP", "CP"))
    data = gpus // (tensor * pipeline * context)
    parallel: dict[str, Any] = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context}
    if row["micro_batch"]:
        parallel["micro_batch"] = micro = whole(row, "micro_batch")
        if data == 0 or batch % (data * micro):
            raise LacksError("the batch does not divide over the replicas")
    if data * context > 1:
        parallel["zero"] = 3
        if 1 < axes.get("FSDP", 1) < data * context:
            parallel["shard_group"] = axes["FSDP"]
    if pipeline > 1 < axes.get("VP", 1):
        parallel["virtual_stages"] = axes["VP"]
    if axes.get("EP", 1) > 1:
        parallel["expert"] = axes["EP"]
    training = products(row["precision"])
    found = re.search(r"q?lora", f"{row['task']} {row['model']}", re.IGNORECASE)
    if found or "peft" in row["task"].lower():
        training["adapters"] = found[0].lower() if found else "lora"
    stated = as_stated(row, model, training, parallel)
    if model == "deepseek-v3":  # its models have no layers that predict further tokens
        stated["mtp_layers"] = 0
    return Case(stated, "automodel-2025", {}, joined_platform(gpu, gpus))


_READERS: dict[str, Callable[[Row], Case]] = {
    "llmfoundry.csv": _llmfoundry,
    "internevo.csv": _internevo,
    "simumax_b200.csv": _simumax,
    "nemo_megatron.csv": nemo,
    "torchtitan_fms.csv": _torchtitan,
    "megatron_korthikanti2022_tab5.csv": korthikanti,
    "jax_toolbox.csv": jax,
    "nvidia_deeplearningexamples.csv": deep_learning_examples,
}
