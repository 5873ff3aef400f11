"""Tables that NVIDIA publishes: NeMo, Megatron-Bridge, Megatron, JAX-Toolbox, DeepLearningExamples."""

from __future__ import annotations

import re
from typing import Any

from lab.score.llm.published_row import Read, Row, platform_name, whole

_MEGATRON_SIZES = re.compile(r"hidden=(\d+) heads=(\d+) layers=(\d+) ff=(\d+)")
_NEMO = {
    "llama2-7b": "llama2-7b",
    "llama2-13b": "llama2-13b",
    "llama2-70b": "llama2-70b",
    "llama3-8b": "llama3-8b",
    "llama3_8b": "llama3-8b",
    "llama3-70b": "llama3-70b",
    "llama3_70b": "llama3-70b",
    "llama3.1_405b": "llama3.1-405b",
    "deepseekv3": "deepseek-v3",
    "gpt oss 120b": "gpt-oss-120b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
    "kimi_k2": "kimi-k2",
    "gpt3-175b": "gpt3-175b",
    "nemotron-340b": "nemotron-340b",
}
_GPUS = {
    "DGX-H100": (8, "H100-SXM-80G", "400G"),
    "DGX-B200": (8, "B200-SXM-180G", "400G"),
    "DGX-B300": (8, "B300-SXM-288G", "800G"),
    "DGX-GB200": (64, "GB200-186G", "400G"),
    "DGX-GB300": (64, "GB300-288G", "800G"),
}
"""GPUs of a node, their name here, and the NIC of each. 64 of the 72 GPUs of a rack share one NVLink."""


def nemo(row: Row) -> Read:
    model = re.sub(r" *\(.*\)", "", row["model"]).strip().lower()
    if model not in _NEMO:
        return "a model with state-space layers or unpublished sizes"
    if "(" in row["parallelism"] or not row["precision"]:
        return "two configurations in one row"
    if "NVFP4" in row["precision"]:
        return "fp4 products"
    axes = {k: int(v) for k, v in re.findall(r"(TP|PP|CP|VP|EP|FSDP)=(\d+)", row["parallelism"])}
    per_node, gpu, nic = _GPUS[row["gpu"]]
    gpus, tensor, pipeline = whole(row, "gpus"), axes.get("TP", 1), axes.get("PP", 1)
    context, virtual, expert = axes.get("CP", 1), axes.get("VP", 1), axes.get("EP", 1)
    data = gpus // (tensor * pipeline * context)
    micro, batch = whole(row, "micro_batch"), whole(row, "global_batch")
    if data == 0 or batch % (data * micro):
        return "the batch does not divide over the replicas"
    parallel: dict[str, Any] = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "micro_batch": micro,
    }
    if tensor > 1:
        parallel |= {"sequence_parallel": True, "async_tensor": True}
    if virtual > 1 and pipeline > 1:
        parallel["virtual_stages"] = virtual
        if batch // data // micro % pipeline:
            return "micro-batches do not divide over the stages of an interleaved pipeline"
    if expert > 1:
        parallel["expert"] = expert
    if axes.get("FSDP", 0) > 1:
        parallel["zero"] = 3
    elif data * context > 1:
        parallel["zero"] = 1
    precision = "bf16" if row["precision"].upper() == "BF16" else "fp8"
    training: dict[str, Any] = {
        "framework": "megatron",
        "precision": precision,
        "attention": "cudnn",
        "gradients": "half",
        "adapters": row["task"] == "LoRA",
    }
    if precision == "fp8" and "Megatron-Bridge" in row["source"]:
        training["fp8_scaling"] = "block" if "MX" in row["precision"].split(" ")[0] else "current"
    if expert > 1:
        _with_experts(row, model, training, parallel)
    document = {
        "model": _NEMO[model],
        "sequence": whole(row, "seq"),
        "global_batch": batch,
        "training": training,
        "parallel": parallel,
    }
    return document, platform_name(gpus, per_node, gpu, nic), ()


_ALL_TO_ALL = {("gpt oss 120b", "H100"), ("gpt oss 120b", "B200"), ("qwen3_235b_a22b", "B200")}
"""Models and GPUs whose recipe exchanges tokens by NCCL's all_to_all; the others use HybridEP or DeepEP
(Megatron-Bridge, scripts/performance/configs, as all facts below)."""
GRAPHS_SINCE = (26, 6)
"""The release since which MXFP8 recipes for mixtures of experts capture whole iterations, fuse the experts'
MLP and run exchanges beside the experts' products; rows with a footnote were measured without."""


def _with_experts(row: Row, model: str, training: dict[str, Any], parallel: dict[str, Any]) -> None:
    """What the published recipes of a release set for mixtures of experts."""
    gpu = row["gpu"].removeprefix("DGX-")
    once = (model, gpu) not in _ALL_TO_ALL
    parallel["expert_dispatch"] = "once" if once else "each"
    found = re.search(r":: (\d+)\.(\d+)", row.get("url_or_path", ""))
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if release >= GRAPHS_SINCE and row["precision"] == "MXFP8" and "[^" not in row.get("notes", ""):
        training |= {"cuda_graphs": True, "fused_experts": True}
        parallel["expert_overlap"] = "experts"


def korthikanti(row: Row) -> Read:
    p = row["parallelism"]
    axes = {k: int(v) for k, v in re.findall(r"(TP|PP|DP|interleave)=(\d+)", p)}
    sizes = _MEGATRON_SIZES.search(row["notes"])
    if sizes is None:
        return "sizes are not stated"
    hidden, heads, layers, ffn = (int(v) for v in sizes.groups())
    parallel: dict[str, Any] = {
        "data": axes["DP"],
        "tensor": axes["TP"],
        "pipeline": axes["PP"],
        "micro_batch": whole(row, "micro_batch"),
    }
    if axes["interleave"] > 1 and axes["PP"] > 1:
        parallel["virtual_stages"] = axes["interleave"]
    if "sequence parallel" in p:
        parallel["sequence_parallel"] = True
    document = {
        "family": "megatron",
        "name": row["model"],
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn": ffn,
        "vocab": 51200,
        "sequence": whole(row, "seq"),
        "global_batch": whole(row, "global_batch"),
        "training": {
            "framework": "megatron",
            "precision": "fp16",
            "attention": "fused",
            "recompute": "selective" if "selective" in p else "full",
        },
        "parallel": parallel,
    }
    return document, platform_name(whole(row, "gpus"), 8, "A100-SXM4-80G", "200G"), ()


def jax(row: Row) -> Read:
    """JAX: compiled throughout, so kernels are fused as by torch.compile."""
    model = {
        "GPT-126M": "gpt2-124m",
        "GPT-175B": "gpt3-175b",
        "LLaMA-7B SFT": "llama2-7b",
        "LLaMA2-7B": "llama2-7b",
        "T5-v1.1-small": "t5-v1.1-small",
        "T5-v1.1-large": "t5-v1.1-large",
        "T5-v1.1-xl": "t5-v1.1-xl",
        "ViT-B/16": "vit-b-16",
        "ViT-G/14": "vit-g-14",
    }.get(row["model"])
    if model is None:
        return "sizes are not stated"
    gpus = whole(row, "gpus")
    parallel: dict[str, Any] = {"data": gpus, "micro_batch": whole(row, "micro_batch")}
    if "FSDP" in row["parallelism"]:
        parallel["zero"] = 3
    training: dict[str, Any] = {
        "framework": "jax",
        "precision": "fp8" if "fp8" in row["precision"].lower() else "bf16",
        "recompute": "full" if "175B" in row["model"] else "none",
    }
    document: dict[str, Any] = {
        "model": model,
        "global_batch": whole(row, "global_batch"),
        "training": training,
        "parallel": parallel,
    }
    if row["seq"]:
        document["sequence"] = whole(row, "seq")
    gpu = "A100-SXM4-80G" if row["gpu"].startswith("A100") else "H100-SXM-80G"
    return document, platform_name(gpus, 8, gpu, "200G" if gpu.startswith("A100") else "400G"), ()


_BERT_GPUS = {
    "8x A100 80GB": ("A100-SXM4-80G", 8),
    "8x A100 80G": ("A100-SXM4-80G", 8),
    "8x A100 40GB": ("A100-SXM4-40G", 8),
    "DGX-1 With 16G": ("V100-SXM2-16G", 8),
    "DGX-1 With 32G": ("V100-SXM2-32G", 8),
    "DGX-2 With 32G": ("V100-SXM3-32G", 16),
    "DGX-2H With 32G": ("V100-SXM3-32G", 16),
}


_BERT_MICRO = {
    ("A100", "80G"): (128, 32), ("A100", "40G"): (64, 16),
    ("V100", "32G"): (64, 16), ("V100", "16G"): (16, 8),
}  # fmt: skip
"""Sequences of a micro-batch at lengths 128 and 512, fp32 half of it: the example's
scripts/configs/pretrain_config.sh (2020); twice as many are taken for 80 GB."""
_BINNED = {512: 256}
"""The example of 2022 reads batches of sequences of about one length; half of the tokens of Wikipedia at 512
are padding (Krell et al. 2021, arXiv 2107.02027)."""


def deep_learning_examples(row: Row) -> Read:
    """BERT pre-training of NVIDIA's examples; fine-tuning rows do not state their length."""
    if row["framework"] != "PyTorch" or row["model"] != "BERT pretrain":
        return "convolutional networks, other frameworks, or lengths that are not stated"
    if not row["seq"] or not row["global_batch"] or row["gpu"] not in _BERT_GPUS:
        return "batch or length is not stated"
    gpu, per_node = _BERT_GPUS[row["gpu"]]
    gpus, batch = whole(row, "gpus"), whole(row, "global_batch")
    sequence, old = whole(row, "seq"), "older README" in row["notes"]
    precision = {"AMP": "fp16", "TF32": "tf32"}.get(row["precision"], "fp32")
    micro = _BERT_MICRO[gpu.rsplit("-", 1)[0][:4], gpu.rsplit("-", 1)[1]][sequence == 512]
    micro = min(micro // (2 if precision == "fp32" else 1), batch // gpus)
    if batch % (gpus * micro):
        return "the batch does not divide over the ranks"
    training: dict[str, Any] = {"framework": "eager", "precision": precision, "optimizer": "lamb"}
    if old:
        training["attention"] = "eager"
    else:
        training |= {"attention": "fused", "loss_share": 0.16}
        sequence = _BINNED.get(sequence, sequence)
    parallel: dict[str, Any] = {"data": gpus, "micro_batch": micro}
    if gpus > 1:
        parallel["overlap_gradients"] = False
    document = {
        "model": "bert-large",
        "sequence": sequence,
        "global_batch": batch,
        "training": training,
        "parallel": parallel,
    }
    return document, platform_name(gpus, per_node, gpu, "100G"), ()
