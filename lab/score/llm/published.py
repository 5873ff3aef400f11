"""``other_training.csv``: throughput tables that projects publish, row by row as far as they say enough."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lab.score.llm.published_nvidia import deep_learning_examples, jax, korthikanti, nemo
from lab.score.llm.published_row import Read, Row, platform_name, whole
from lab.score.llm.rows import Case

FILE = "other_training.csv"


def case(row: dict[str, str]) -> Case:
    """One row, by the file it came from."""
    name = (
        f"{row['file'].removesuffix('.csv')}: {row['model']} {row['gpus']}x{row['gpu']} {row['parallelism']}"
    )
    if not row["iter_time_ms"]:
        return Case(name, None, lacks="no iteration time", group=row["file"])
    reader = _READERS.get(row["file"])
    found = reader(row) if reader else "another framework or no language model"
    if isinstance(found, str):
        return Case(name, None, lacks=found, group=row["file"])
    document, platform, overrides = found
    return Case(
        name,
        {"kind": "transformer", **document},
        platform,
        overrides,
        float(row["iter_time_ms"]),
        group=row["file"],
        fit_group=f"{row['file'].removesuffix('.csv')}: {row['model']} on {row['gpus']} {row['gpu']}",
    )


def _llmfoundry(row: Row) -> Read:
    """MPT by Composer's FSDP: Triton's flash attention with ALiBi, as fast as the first version."""
    gpu = {"a100_40gb": "A100-SXM4-40G", "a100_80gb": "A100-SXM4-80G", "h100_80gb": "H100-SXM-80G"}[
        row["gpu"]
    ]
    fields = dict(re.findall(r"(\w+)=(\w+)", row["parallelism"]))
    gpus, fp8 = whole(row, "gpus"), "fp8" in row["precision"]
    parallel: dict[str, Any] = {"data": gpus, "zero": 3, "micro_batch": whole(row, "micro_batch")}
    if "SHARD_GRAD_OP" in row["parallelism"]:
        parallel["reshard"] = False
    document = {
        "model": row["model"].lower(),
        "sequence": whole(row, "seq"),
        "global_batch": whole(row, "global_batch"),
        "training": {
            "framework": "llm-foundry",
            "precision": "fp8" if fp8 else "bf16",
            "attention": "flash1",
            "recompute": "full" if fields.get("act_ckpt") == "True" else "none",
            "master_weights": not row["precision"].startswith("amp"),
        },
        "parallel": parallel,
    }
    return document, platform_name(gpus, 8, gpu, "400G" if "H100" in gpu else "200G"), ()


def _internevo(row: Row) -> Read:
    p = row["parallelism"]
    tensor, zero = int(re.findall(r"tp=(\d+)", p)[0]), int(re.findall(r"zero1=(-?\d+)", p)[0])
    micro_num = int(re.findall(r"micro_num=(\d+)", p)[0])
    gpus = whole(row, "gpus")
    data = gpus // tensor
    batch = whole(row, "global_batch") // data // micro_num
    parallel: dict[str, Any] = {
        "data": data,
        "tensor": tensor,
        "zero": 1,
        "bucket_mb": 512.0,
        "micro_batch": batch,
    }
    if zero > 0 and zero < data:
        parallel["shard_group"] = zero
    document = {
        "model": "internlm-7b",
        "global_batch": whole(row, "global_batch"),
        "sequence": whole(row, "seq"),
        "training": {
            "framework": "internevo",
            "attention": "flash1",
            "precision": "bf16",
            "recompute": "full" if "act_ckpt=t" in p.lower() else "none",
        },
        "parallel": parallel,
    }
    return document, platform_name(gpus, 8, "A100-SXM4-80G", "50G"), ()


_ONE_DENSE_LAYER = {"experts": 256, "active": 8, "ffn": 2048, "shared_ffn": 2048, "dense_layers": 1}
"""DeepSeek-V3's experts behind one dense layer instead of three, as in SimuMax's runs of four layers."""


def _simumax(row: Row) -> Read:
    """Settings as the notes of the table say: heads are exchanged for parts of the sequence."""
    axes = {k: int(v) for k, v in re.findall(r"(TP|PP|DP|EP|CP|micro-batches)=(\d+)", row["parallelism"])}
    name, layers = re.findall(r"(\w+) truncated to (\d+) layers", row["model"])[0]
    model = {
        "llama3_70b": "llama3-70b",
        "llama3_405b": "llama3.1-405b",
        "deepseekv2": "deepseek-v2",
        "deepseekv3": "deepseek-v3",
    }[name]
    parallel: dict[str, Any] = {
        "data": axes["DP"],
        "tensor": axes["TP"],
        "pipeline": axes["PP"],
        "context": axes["CP"],
        "micro_batch": 1,
        "zero": 1,
    }
    if axes["TP"] > 1:
        parallel["sequence_parallel"] = True
    if axes["EP"] > 1:
        parallel["expert"] = axes["EP"]
    if axes["DP"] * axes["CP"] == 1:
        parallel.pop("zero")
    if axes["CP"] > 1:
        parallel["context_kind"] = "all_to_all"
    document: dict[str, Any] = {
        "model": model,
        "layers": int(layers),
        "sequence": whole(row, "seq"),
        "global_batch": whole(row, "global_batch"),
        "training": {"framework": "megatron", "precision": "bf16", "attention": "cudnn"},
        "parallel": parallel,
    }
    if model == "deepseek-v3":
        document["moe"] = _ONE_DENSE_LAYER
    return document, "8xB200-SXM-180G", ()


def _torchtitan(row: Row) -> Read:
    p = row["parallelism"]
    if "rowwise" in row["precision"]:
        return "fp8 products scaled row by row"
    model = {"llama3.1-8b": "llama3-8b", "llama3.1-70b": "llama3-70b"}.get(
        row["model"].lower(), row["model"].lower()
    )
    axes = {k: int(v) for k, v in re.findall(r"(FSDP|TP|PP|CP)(\d+)", p)}
    gpus, tensor, pipeline, context = (
        whole(row, "gpus"),
        axes.get("TP", 1),
        axes.get("PP", 1),
        axes.get("CP", 1),
    )
    data = gpus // (tensor * pipeline * context)
    batch = whole(row, "global_batch")
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
        parallel |= {"sequence_parallel": True, "async_tensor": "AsyncTP" in p}
    precision = "fp8" if "fp8" in row["precision"] else "bf16"
    recompute = "full" if "fullAC" in p else "none" if "No AC" in p else "selective"
    document = {
        "model": model,
        "sequence": whole(row, "seq"),
        "global_batch": batch,
        "training": {
            "framework": "torchtitan",
            "precision": precision,
            "recompute": recompute,
            "compile": "eager" not in p,
        },
        "parallel": parallel,
    }
    overrides = (
        ("gpu.memory_gb=96", "gpu.memory_gbps=2400", "gpu.power_w=500") if "HBM2e" in row["gpu"] else ()
    )
    return document, platform_name(gpus, 8, "H100-SXM-80G", "400G"), overrides


_READERS: dict[str, Callable[[Row], Read]] = {
    "llmfoundry.csv": _llmfoundry,
    "internevo.csv": _internevo,
    "simumax_b200.csv": _simumax,
    "nemo_megatron.csv": nemo,
    "torchtitan_fms.csv": _torchtitan,
    "megatron_korthikanti2022_tab5.csv": korthikanti,
    "jax_toolbox.csv": jax,
    "nvidia_deeplearningexamples.csv": deep_learning_examples,
}
