"""Tables that NVIDIA publishes: NeMo, Megatron, JAX-Toolbox, DeepLearningExamples, DGX Cloud, MLPerf."""

from __future__ import annotations

import json
import re
from typing import Any

from lab.datasets.llm.case import (
    NO_GPU,
    Case,
    LacksError,
    Row,
    as_stated,
    catalogue_gpu,
    catalogue_model,
    joined_gpus,
    number,
    platform_name,
    required,
    whole,
)

DGXC, MLPERF, ABLATIONS = "dgxc_llm", "mlperf_llm", "megatron_bridge_ablations"
NO_MODEL_OR_GPU = "a model or a GPU that is not in the catalogue"

# --- NeMo's and Megatron-Bridge's performance tables ---

NICS = {"B300-SXM-288G": "800G", "GB300-288G": "800G"}
"""Of each GPU, where it is not 400 Gb/s."""


def joined_platform(gpu: str, gpus: int) -> str:
    """This many GPUs, joined and networked as NVIDIA's systems are."""
    return platform_name(gpus, joined_gpus(gpu, gpus), gpu, NICS.get(gpu, "400G"))


def products(text: str) -> dict[str, Any]:
    """GEMMs' type, and the scaling of fp8 where the table names it: FP8, FP8-CS (current), MXFP8, NVFP4."""
    upper = text.upper()
    if "FP4" in upper:
        return {"precision": "nvfp4"}
    if "FP8" not in upper:
        return {"precision": text.lower()} if text else {}
    if "MX" in upper:
        return {"precision": "fp8", "fp8_scaling": "block"}
    current = re.search(r"\bCS\b|CURRENT", upper)
    return {"precision": "fp8", "fp8_scaling": "current"} if current else {"precision": "fp8"}


def nemo(row: Row) -> Case:
    """NeMo (to spring 2024) or Megatron-Bridge (2025): rows state layouts, the recipe what the stack does."""
    model = required(catalogue_model(row["model"]), "a model with state-space layers or unpublished sizes")
    if "(" in row["parallelism"] or not row["precision"]:
        raise LacksError("two configurations in one row")
    gpu = required(catalogue_gpu(row["gpu"]), NO_GPU)
    axes = stated_axes(row)
    gpus, batch, micro = whole(row, "gpus"), whole(row, "global_batch"), whole(row, "micro_batch")
    expert, bridge = axes.get("EP", 1), "Megatron-Bridge" in row["source"]
    parallel, more = _layout(gpus, batch, micro, axes)
    if expert > 1:
        parallel["expert"] = expert
    if axes.get("FSDP", 0) > 1:
        parallel["zero"] = 3
        more.pop("zero", None)
    training: dict[str, Any] = {**products(row["precision"]), "adapters": row["task"] == "LoRA"}
    settings: dict[str, Any] = {"training": {"gradients": "half"}, "parallel": more}
    stated = as_stated(row, model, training, parallel)
    if "w/o MTP" in row["model"]:
        stated["mtp_layers"] = 0
    recipe = _bridge(row) if bridge else "nemo-2023"
    return Case(stated, recipe, settings, joined_platform(gpu, gpus))


def stated_axes(row: Row) -> dict[str, int]:
    """The axes that a column of words states: ``TP=1 PP=4 EP=64``."""
    axes = {k: int(v) for k, v in re.findall(r"\b(TP|PP|CP|VP|EP|FSDP)=(\d+)", row["parallelism"])}
    if "VP=" in row["parallelism"]:
        axes.setdefault("VP", 1)
    return axes


def _layout(gpus: int, batch: int, micro: int, axes: dict[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axes as rows state them, and what NVIDIA's recipes add.

    A table without a column of virtual stages leaves them to the recipe."""
    tensor, pipeline = axes.get("TP", 1), axes.get("PP", 1)
    context, virtual = axes.get("CP", 1), axes.get("VP", 0)
    data = gpus // (tensor * pipeline * context)
    if data == 0 or batch % (data * micro):
        raise LacksError("the batch does not divide over the replicas")
    parallel: dict[str, Any] = {
        "data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "micro_batch": micro,
    }  # fmt: skip
    more: dict[str, Any] = {"sequence_parallel": True, "async_tensor": True} if tensor > 1 else {}
    if virtual and pipeline > 1:
        parallel["virtual_stages"] = virtual
        if virtual > 1 and batch // data // micro % pipeline:
            raise LacksError("micro-batches do not divide over the stages of an interleaved pipeline")
    if data * context > 1:
        more["zero"] = 1
    return parallel, more


def _axes(row: Row) -> dict[str, int]:
    """The axes that have a column each."""
    return {axis.upper(): whole(row, axis, 1) for axis in ("tp", "pp", "cp", "vp")}


GRAPHS_SINCE = (26, 6)
"""The release of recipe nemo-2026; rows with a footnote were measured with the recipes before."""


def _bridge(row: Row) -> str:
    """The recipe of a release of Megatron-Bridge."""
    found = re.search(r":: (\d+)\.(\d+)", row.get("url_or_path", ""))
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return "nemo-2026" if release >= GRAPHS_SINCE and "[^" not in row.get("notes", "") else "nemo-2025"


# --- DGX Cloud recipes: NeMo on H100 ---


def dgxc(row: Row) -> Case:
    """One row of a release's tables."""
    model = required(catalogue_model(row["model"]), NO_MODEL_OR_GPU)
    gpu, gpus = required(catalogue_gpu(row["gpu"]), NO_MODEL_OR_GPU), whole(row, "gpus")
    parallel, more = _layout(gpus, whole(row, "global_batch"), whole(row, "micro_batch", 1), _axes(row))
    if row.get("ep"):
        parallel["expert"] = whole(row, "ep")
    expert_tensor = whole(row, "etp", 1)
    if parallel.get("expert", 1) > 1 < expert_tensor and parallel["tensor"] % expert_tensor == 0:
        parallel["expert_tensor"] = expert_tensor
    if whole(row, "fsdp", 0) > 1:
        parallel["zero"] = 3
        more.pop("zero", None)
    stated = as_stated(row, model, products(row["precision"]), parallel)
    if row.get("layers"):
        stated["layers"] = whole(row, "layers")
    settings = {"training": {"gradients": "half"}, "parallel": more}
    release = tuple(int(part) for part in re.findall(r"\d+", row["release"])[:2])
    recipe = "nemo-2025" if release > (25, 4) else "nemo-2024"
    return Case(
        stated, recipe, settings, joined_platform(gpu, gpus),
        measured_ms=1e3 * float(row["step_s"]) if row["step_s"] else None,
    )  # fmt: skip


# --- MLPerf Training ---

_MLPERF = {"llama2_70b_lora": "llama2-70b", "gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b",
           "llama31_8b": "llama3.1-8b"}  # fmt: skip
_WIDEST_TENSOR = 4
"""Tensor ranks of the submissions at most; further ranks of a replica are stages, or split the sequence
(fine-tuning)."""


def mlperf(row: Row) -> Case:
    """One result; where the configuration is not sure, the layout follows from what the run logged."""
    model = required(_MLPERF.get(row["benchmark"]), NO_MODEL_OR_GPU)
    gpu = required(catalogue_gpu(row["gpu"]), NO_MODEL_OR_GPU)
    gpus, batch, micro = whole(row, "gpus"), whole(row, "global_batch"), whole(row, "micro_batch", 1)
    sure = row["config_sure"] == "yes" and bool(row["tp"])
    axes = _axes(row) if sure else _logged(row)
    layouts = [] if axes else _least_first(row, gpus, batch)
    if not axes and not layouts:
        raise LacksError("no layout divides the batch")
    parallel = _layout(gpus, batch, micro, axes)[0] if axes else layouts[0]
    if row.get("ep"):
        parallel["expert"] = whole(row, "ep")
    lora = {"adapters": True} if "lora" in row["benchmark"] else {}
    stated = as_stated(row, model, {**products(row["precision"]), **lora}, parallel)
    amd = gpu.startswith("MI")
    return Case(
        stated, "mlperf-amd-2025" if amd else "mlperf-nvidia-2024",
        _submission(row, parallel) if sure else {}, joined_platform(gpu, gpus),
        measured_ms=number(row, "step_ms"), layouts=tuple(layouts),
    )  # fmt: skip


def _least_first(row: Row, gpus: int, batch: int) -> list[dict[str, Any]]:
    """Layouts of a result that states none: as few ranks of a replica as fit, of them tensor before pipeline
    before context, and with the gradient accumulation that the run logged. Fine-tuning has no pipeline."""
    steps, lora = whole(row, "grad_acc_logged", 0), "lora" in row["benchmark"]
    found = []
    for tensor in (1, 2, _WIDEST_TENSOR):
        for pipeline in (1, 2, 4, 8, 16)[: 1 if lora else 5]:
            for context in (1, 2, 4, 8):
                data, rest = divmod(gpus, tensor * pipeline * context)
                if rest or not data or batch % data:
                    continue
                micro, uneven = divmod(batch // data, steps) if steps else (1, 0)
                if uneven or micro not in (1, 2, 4):
                    continue
                found.append({"data": data, "tensor": tensor, "pipeline": pipeline, "context": context,
                              "micro_batch": micro})  # fmt: skip
    return sorted(found, key=lambda p: (-p["data"], -p["tensor"], -p["pipeline"]))


def _logged(row: Row) -> dict[str, int] | None:
    """The layout of a fine-tuning run from its logged gradient accumulation: that gives the replicas, and so
    the ranks of one; they split the tensors first. None where that is not enough."""
    if "lora" not in row["benchmark"] or not row.get("grad_acc_logged"):
        return None
    replicas = whole(row, "global_batch") // (whole(row, "grad_acc_logged") * whole(row, "micro_batch", 1))
    ranks, rest = divmod(whole(row, "gpus"), max(1, replicas))
    if rest or ranks & (ranks - 1):
        return None
    tensor = min(ranks, _WIDEST_TENSOR)
    return {"TP": tensor, "PP": 1, "CP": ranks // tensor, "VP": 1}


def _submission(row: Row, parallel: dict[str, Any]) -> dict[str, Any]:
    """What the submission's own settings say."""
    given = json.loads(row["config_json"] or "{}")
    training: dict[str, Any] = {"cuda_graphs": given.get("LAYER_CUDA_GRAPH") == "1"}
    if "FP8_ACTIVATION" in given:
        training["fp8_activations"] = given["FP8_ACTIVATION"] in ("True", "1")
    if given.get("ACG") == "full" and given.get("ACM") == "block":
        training["recompute"] = int(given.get("ACL") or 0) or "full"
    more: dict[str, Any] = {}
    if parallel["tensor"] > 1 and "SP" in given:
        more["sequence_parallel"] = given["SP"] == "1"
    if given.get("USE_DIST_OPTIMIZER") == "True" and parallel["data"] * parallel["context"] > 1:
        more["zero"] = 1
    if "BUCKET_CAP_MB" in given:
        more["bucket_mb"] = float(given["BUCKET_CAP_MB"])
    return {"training": training, "parallel": more}


# --- Megatron-Bridge: recomputation by module against time and memory ---


def ablation(row: Row) -> Case:
    """One row; modules whose recomputation no single word states are given as a list."""
    model = required(catalogue_model(row["model"]), "a model with state-space layers, or no language model")
    gpus, batch, micro = whole(row, "gpus"), whole(row, "global_batch"), whole(row, "micro_batch", 1)
    parallel, more = _layout(gpus, batch, micro, _axes(row))
    if row["ep"]:
        parallel["expert"] = whole(row, "ep")
    modules = row["recompute"].split(",")[0]
    trained = {
        "precision": "fp8" if "fp8" in row["precision"] else "bf16",
        "recompute": modules.split("+") if modules != "none" else "none",
    }
    stated = as_stated(row, model, trained, parallel)
    training: dict[str, Any] = {"gradients": "half"}
    if "expandable_segments" in row["recompute"]:
        training["expandable_segments"] = True
    if "current" in row["precision"]:
        training["fp8_scaling"] = "current"
    crashed = row["outcome"].startswith("OOM")
    return Case(
        stated, "nemo-2025", {"training": training, "parallel": more},
        platform_name(gpus, 8, "H100-SXM-80G", "400G"),
        measured_ms=None if crashed else number(row, "step_ms"),
        measured_gb=number(row, "peak_allocated_gb"), allocated=True, crashed=crashed,
    )  # fmt: skip


# --- Megatron (Korthikanti et al. 2022, table 5), JAX-Toolbox, BERT of the DeepLearningExamples ---

_MEGATRON_SIZES = re.compile(r"hidden=(\d+) heads=(\d+) layers=(\d+) ff=(\d+)")


def korthikanti(row: Row) -> Case:
    p = row["parallelism"]
    axes = {k: int(v) for k, v in re.findall(r"(TP|PP|DP|interleave)=(\d+)", p)}
    sizes = required(_MEGATRON_SIZES.search(row["notes"]), "sizes are not stated")
    hidden, heads, layers, ffn = (int(v) for v in sizes.groups())
    parallel: dict[str, Any] = {
        "data": axes["DP"], "tensor": axes["TP"], "pipeline": axes["PP"],
        "micro_batch": whole(row, "micro_batch"),
    }  # fmt: skip
    if axes["interleave"] > 1 and axes["PP"] > 1:
        parallel["virtual_stages"] = axes["interleave"]
    parallel["sequence_parallel"] = "sequence parallel" in p
    stated = {
        "family": "megatron", "name": row["model"], "layers": layers, "hidden": hidden, "heads": heads,
        "ffn": ffn, "vocab": 51200, "sequence": whole(row, "seq"), "global_batch": whole(row, "global_batch"),
        "training": {"precision": "fp16", "recompute": "selective" if "selective" in p else "full"},
        "parallel": parallel,
    }  # fmt: skip
    settings = {"training": {"attention": "fused"}}
    platform = platform_name(whole(row, "gpus"), 8, "A100-SXM4-80G", "200G")
    return Case(stated, "megatron-2023", settings, platform)


_JAX = {
    "GPT-126M": "gpt2-124m", "GPT-175B": "gpt3-175b", "LLaMA-7B SFT": "llama2-7b", "LLaMA2-7B": "llama2-7b",
    "T5-v1.1-small": "t5-v1.1-small", "T5-v1.1-large": "t5-v1.1-large", "T5-v1.1-xl": "t5-v1.1-xl",
    "ViT-B/16": "vit-b-16", "ViT-G/14": "vit-g-14",
}  # fmt: skip


def jax(row: Row) -> Case:
    """JAX: compiled throughout, so kernels are fused as by torch.compile."""
    model = required(_JAX.get(row["model"]), "sizes are not stated")
    gpus = whole(row, "gpus")
    parallel: dict[str, Any] = {"data": gpus, "micro_batch": whole(row, "micro_batch")}
    if "FSDP" in row["parallelism"]:
        parallel["zero"] = 3
    stated: dict[str, Any] = {
        "model": model,
        "global_batch": whole(row, "global_batch"),
        "training": {"precision": "fp8" if "fp8" in row["precision"].lower() else "bf16"},
        "parallel": parallel,
    }
    if row["seq"]:
        stated["sequence"] = whole(row, "seq")
    settings = {"training": {"recompute": "full" if "175B" in row["model"] else "none"}}
    a100 = row["gpu"].startswith("A100")
    gpu, nic = ("A100-SXM4-80G", "200G") if a100 else ("H100-SXM-80G", "400G")
    return Case(stated, "maxtext", settings, platform_name(gpus, 8, gpu, nic))


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
"""Sequences of a micro-batch at lengths 128 and 512, fp32 and tf32 half of it: the example's
scripts/configs/pretrain_config.sh (2020); twice as many are taken for 80 GB."""
_BINNED = {512: 256 + 64 // 2}
"""The example of 2022 reads its second phase through LDDL in bins of 64 tokens (scripts/run_pretraining.sh; a
micro-batch is padded to its longest sequence), so 512 is the largest length: half of the tokens of Wikipedia
at 512 are padding (Krell et al. 2021, arXiv 2107.02027), and a bin adds half of its width."""


def deep_learning_examples(row: Row) -> Case:
    """BERT pre-training of NVIDIA's examples; fine-tuning rows do not state their length."""
    if row["framework"] != "PyTorch" or row["model"] != "BERT pretrain":
        raise LacksError("convolutional networks, other frameworks, or lengths that are not stated")
    if not row["seq"] or not row["global_batch"] or row["gpu"] not in _BERT_GPUS:
        raise LacksError("batch or length is not stated")
    gpu, per_node = _BERT_GPUS[row["gpu"]]
    gpus, batch = whole(row, "gpus"), whole(row, "global_batch")
    sequence, old = whole(row, "seq"), "older README" in row["notes"]
    precision = {"AMP": "fp16", "TF32": "tf32"}.get(row["precision"], "fp32")
    micro = _BERT_MICRO[gpu.rsplit("-", 1)[0][:4], gpu.rsplit("-", 1)[1]][sequence == 512]
    micro = min(micro // (1 if precision == "fp16" else 2), batch // gpus)
    if micro < 1 or batch % (gpus * micro):
        raise LacksError("the batch does not divide over the ranks")
    training: dict[str, Any] = {
        "optimizer": "lamb", "attention": "eager" if old else "fused", "clip_gradients": True,
    }  # fmt: skip
    if precision == "fp16":  # apex O2
        training |= {"master_weights": True, "loss_scaling": True}
    more: dict[str, Any] = {"parallel": {"overlap_gradients": False}} if gpus > 1 else {}
    if not old:
        training["loss_share"] = 0.16
        more["sequence"] = _BINNED.get(sequence, sequence)
    stated = as_stated(row, "bert-large", {"precision": precision}, {"data": gpus, "micro_batch": micro})
    platform = platform_name(gpus, per_node, gpu, "100G")
    return Case(stated, "pytorch", {"training": training, **more}, platform)
