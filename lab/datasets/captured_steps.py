"""Published steps of models that a script can build again: one reader per file, each row with its script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import csv_records, number, read_text, whole

LIBRARY_STEP = "lab.library.build"
IMAGE_STEP = "lab.score.capture.image_step"
NVIDIA_STEP = "lab.score.capture.nvidia_step"
PEFT_STEP = "lab.score.capture.peft_step"
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row: what is run (``script`` with ``asked``), where, and what was measured.

    ``groups`` are the subsets that the row is also scored with. ``larger_batch`` is one that did not fit.
    The script's first ``warmup`` steps are not recorded; the next ``steps`` are, and their mean is scored.
    ``torch`` is the version that ran, where its defaults differ from today's.
    """

    file: str
    name: str
    script: str
    asked: Mapping[str, Any]
    platform: str
    step_ms: float
    ranks: int = 1
    groups: tuple[str, ...] = ()
    active_bytes: float = 0.0
    reserved_bytes: float = 0.0
    batch: int = 0
    larger_batch: int = 0
    libraries: tuple[str, ...] = ()
    warmup: int = 2
    steps: int = 1
    torch: str = ""


MODELS_H100_TORCH = "2.5"
"""Not stated: the newest when transformers 4.46.3 came out, which the rows' memory points to."""


def models_h100(row: Row, where: str) -> MeasuredStep:
    if row["precision"] not in ("FP", "MP", "HP"):
        raise InputError(f"{where}: precision", f"is {row['precision']!r}", "one of FP, MP, HP")
    if row["activation_checkpointing"] not in ("True", "False"):
        raise InputError(f"{where}: activation_checkpointing", "is not True or False")
    batch, sequence, image = (whole(row[n], f"{where}: {n}", least=-1) for n in ("batch", "seq", "image"))
    again = row["activation_checkpointing"] == "True"
    asked = {
        "model": row["model"], "batch": batch, "sequence": sequence, "image": image,
        "precision": row["precision"], "checkpointing": again,
    }  # fmt: skip
    sizes = [f"batch {batch}", *([f"sequence {sequence}"] if sequence > 0 else [])]
    sizes += [f"image {image}"] if image > 0 else []
    name = f"{row['model']} {', '.join(sizes)}, {row['precision']}" + (", AC" if again else "")
    step, active, reserved = (
        number(row[n], f"{where}: {n}") for n in ("step_ms", "peak_active_bytes", "peak_reserved_bytes")
    )
    return MeasuredStep(
        "models_h100", name, LIBRARY_STEP, asked, "1xH100-SXM", step, groups=(row["model"],),
        active_bytes=active, reserved_bytes=reserved, batch=batch, libraries=("timm", "transformers"),
        torch=MODELS_H100_TORCH,
    )  # fmt: skip


def timm_train(row: Row, where: str) -> MeasuredStep:
    """timm's training benchmark: explicit attention, since its torch had no other."""
    batch, image = whole(row["batch"], f"{where}: batch"), whole(row["image"], f"{where}: image")
    failed = row["next_larger_batch_that_failed"]
    asked = {
        "model": row["model"], "batch": batch, "image": image, "channels_last": row["layout"] == "nhwc",
        "params_m": number(row["params_m"], f"{where}: params_m"), **_precision(row, where),
    }  # fmt: skip
    return MeasuredStep(
        "timm_train_rtx3090", f"{row['model']} {row['layout']}", IMAGE_STEP, asked, f"1x{row['gpu']}",
        number(row["step_ms"], f"{where}: step_ms"), groups=(row["layout"], family(row["model"])),
        batch=batch, larger_batch=int(float(failed)) if failed else 0, libraries=("timm",), warmup=1,
        torch=row["torch"],
    )  # fmt: skip


def timm_forward(row: Row, where: str) -> MeasuredStep:
    asked = {
        "model": row["model"], "batch": whole(row["batch"], f"{where}: batch"),
        "image": whole(row["image"], f"{where}: image"), "channels_last": row["layout"] == "nhwc",
        "params_m": number(row["params_m"], f"{where}: params_m"), "training": False,
        "fused_attention": True, "compiled": row["mode"] != "eager", **_precision(row, where),
    }  # fmt: skip
    condition = f"torch {row['torch']} {row['mode']}"
    return MeasuredStep(
        "timm_forward_consumer", f"{row['model']} {row['gpu']} {condition}", IMAGE_STEP, asked,
        f"1x{row['gpu']}", number(row["forward_ms"], f"{where}: forward_ms"),
        groups=(row["gpu"], condition, row["layout"], family(row["model"])), libraries=("timm",), warmup=1,
        torch=row["torch"],
    )  # fmt: skip


def _precision(row: Row, where: str) -> dict[str, str]:
    """The type of autocast, or fp32; nothing for fp16, which most of timm's rows are in."""
    name, _, more = row["precision"].partition(",")[0].partition(" ")
    if name not in ("fp16", "bf16", "fp32") or more != ("" if name == "fp32" else "autocast"):
        raise InputError(f"{where}: precision", f"is {row['precision']!r}", "fp32, or fp16 or bf16 autocast")
    return {} if name == "fp16" else {"precision": name}


LAMBDA_BOARDS = {
    "H100": "H100-SXM-80G", "H100 PCIe": "H100-PCIE-80G", "A100": "A100-SXM4-80G",
    "A100 PCIe": "A100-PCIE-80G", "RTX 6000": "RTX-6000-Ada",
}  # fmt: skip
LAMBDA_BATCHES = {
    "resnet50": (1280, 640), "ssd": (448, 256), "bert_base_squad": (320, 172), "bert_large_squad": (112, 64),
    "ncf": (10_000_000, 8_000_000),
}  # fmt: skip
"""What the benchmark runs per GPU of 80 GB, in fp16 and fp32: an A100 with less is the one of 40 GB."""


def lambda_gpus(row: Row, where: str) -> MeasuredStep | None:
    """Rows whose trust is good or fair; BERT's on several GPUs count their start-up."""
    ranks = whole(row["gpus"], f"{where}: gpus")
    if "several GPUs poor" in row["trust"] and ranks > 1:
        return None
    board = LAMBDA_BOARDS.get(row["board"], row["board"].replace(" ", "-"))
    batch, mixed = whole(row["total_batch"], f"{where}: total_batch"), row["precision"] == "fp16 AMP"
    if batch // ranks < LAMBDA_BATCHES.get(row["task"], (0, 0))[0 if mixed else 1]:
        board = board.replace("A100-PCIE-80G", "A100-PCIE-40G").replace("A100-SXM4-80G", "A100-SXM4-40G")
    asked = {"task": row["task"], "batch": batch // ranks, "mixed": mixed}
    precision = "fp16" if mixed else "fp32"
    return MeasuredStep(
        "lambda_gpus", f"{row['task']} {precision} {ranks}x{row['board']}, batch {batch}", NVIDIA_STEP, asked,
        f"{ranks}x{board}", number(row["iter_ms"], f"{where}: iter_ms"), ranks,
        groups=(row["task"], f"{row['task']} {row['board']}"), batch=batch // ranks,
        libraries=("timm", "transformers"),
    )  # fmt: skip


LENGTH_SPREAD, LONGEST, PADDED = 0.36, 710, 1.035
"""MetaMathQA (texts up to 1,300 characters) in batches sorted by length: the standard deviation of a batch's
length over a text's mean, the longest batch, a batch's mean length over a text's. Spread and padding were
recovered from the reserved memory of one LoRA run (mean, 99th percentile), with gamma-distributed lengths;
the longest from the maximum of four other methods."""

PEFT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ADALORA": {
        "init_r": 64, "target_r": 32, "tinit": 200, "tfinal": 500, "total_step": 5000,
        "task_type": None,  # the model's own forward is called: no orthogonal regularisation
    },
    "ADAMSS": {"num_subspaces": 32, "subspace_rank": 1},
    "ADAPTION_PROMPT": {"adapter_len": 100, "adapter_layers": 28, "target_modules": "self_attn"},
    "BOFT": {"boft_block_size": 4},
    "C3A": {"block_size": 64},
    "DEFT para": {"para": True},
    "EWORA": {"num_experts": 4},
    "FOURIERFT 5000": {"n_frequency": 5000},
    "FROD": {"sparse_rate": 0.01, "runtime_offload_base_weight": True},
    "FROD sparse0.02": {"sparse_rate": 0.02},
    "GLORA vector": {"config_A_B": "vector", "config_C": "vector", "config_D_E": "constant"},
    "LILY a2-b2": {"num_B": 2, "stride_A": 14},
    "LOHA khatri-rao": {"use_khatri_rao": True},
    "LOKR factor4": {"decompose_factor": 4},
    "LORA bdlora": {"use_bdlora": {
        "target_modules_bd_a": ["o_proj", "down_proj"], "nblocks": 2,
        "target_modules_bd_b": ["q_proj", "v_proj", "k_proj", "up_proj", "gate_proj"],
    }},
    "LORA kasa": {"kasa_config": {"beta": 1e-4, "gamma": 1e-3}},
    "LORA mica": {"init_lora_weights": "mica"},
    "LORA rslora": {"use_rslora": True},
    "LORA velora": {"velora_config": {"init_type": "batch_average_once", "num_groups": 32, "scale": 1.0}},
    "MISS bat": {"init_weights": "bat"},
    "MISS mini": {"init_weights": "mini", "mini_r": 64},
    "OFT": {"oft_block_size": 0},
    "OSF rank128": {"rank_pattern": {
        **dict.fromkeys(("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 2944),
        **dict.fromkeys(("k_proj", "v_proj"), 896),
    }},
    "PEANUT": {"act_fn": "relu", "depth": 0},
    "PEANUT depth2": {"depth": 2},
    "PSOFT fast": {"psoft_svd": "lowrank", "use_cayley_neumann": True},
    "P_TUNING": {"num_virtual_tokens": 20, "encoder_hidden_size": 3072, "encoder_num_layers": 2},
    **{f"P_TUNING vt{n}": {"num_virtual_tokens": n} for n in (10, 20, 30, 50)},
    "P_TUNING LSTM": {"encoder_reparameterization_type": "LSTM"},
    "ROAD": {"variant": "road_2", "group_size": 64},
    "SHADOW": {
        "shadow_model": "mirror", "shadow_hidden_size": 32, "shadow_intermediate_size": 256,
        "shadow_num_attention_heads": 8, "shadow_num_hidden_layers": 1, "share_embeddings": True,
    },
    "SUPERTUNING s974": {"sparsity": 0.974},
    "SUPERTUNING s99": {"sparsity": 0.99},
    "SUPERTUNING s9935": {"sparsity": 0.9935},
    "SUPERTUNING bottomk": {"select_top": False},
    "TINYLORA weight-tying": {"weight_tying": 1.0},
    "TRAINABLE_TOKENS": {"token_indices": [128000, 128001]},
    "UNILORA td131072": {"theta_d_length": 131072},
    "VBLORA": {"num_vectors": 256, "vector_length": 256},
    "VBLORA bank1024": {"num_vectors": 1024},
    "WAVEFT 5000": {"n_frequency": 5000},
}  # fmt: skip
"""What the benchmark's adapter files (huggingface/peft, method_comparison/MetaMathQA/experiments) state
beyond rank and modules, by method and a word of the experiment's name; later lines override."""
PER_TOKEN = {"PROMPT_TUNING": 3072, "PREFIX_TUNING": 2 * 28 * 1024}
"""Trainable parameters per virtual token of a 3B Llama."""


def peft_l40s(row: Row, where: str) -> MeasuredStep:
    kind, trainable = row["peft_type"], whole(row["trainable_params"], f"{where}: trainable_params")
    settings: dict[str, Any] = {}
    for name, given in PEFT_SETTINGS.items():
        method, _, word = name.partition(" ")
        if method == kind and word in row["experiment"]:
            settings |= given
    if kind in PER_TOKEN:
        settings["num_virtual_tokens"] = trainable // PER_TOKEN[kind]
    if row["dora"] == "True":
        settings["use_dora"] = True
    batch = whole(row["batch"], f"{where}: batch")
    asked = {
        "kind": kind, "rank": int(float(row["rank"] or 0)), "batch": batch, "trainable": trainable,
        "targets": [t for t in row["target_modules"].split(";") if t], "settings": settings,
        "checkpointing": row["grad_checkpointing"] == "True",
        "widened": kind != "OSF",  # its training_params.json
        "optimizer": next((o for o in ("lorafa", "riemannian") if o in row["experiment"]), "adamw"),
    }  # fmt: skip
    mean = number(row["mean_tokens_per_step"], f"{where}: mean_tokens_per_step") / batch - 1
    short, long = (round(mean * (PADDED + way * LENGTH_SPREAD)) for way in (-1, 1))
    asked["lengths"] = [short, LONGEST, short, long]
    return MeasuredStep(
        "peft_l40s", row["experiment"], PEFT_STEP, asked, f"1x{row['gpu'].removeprefix('NVIDIA ')}",
        number(row["step_ms"], f"{where}: step_ms"), groups=(kind,),
        reserved_bytes=number(row["mem_reserved_max_bytes"], f"{where}: mem_reserved_max_bytes"),
        libraries=("transformers", "peft"), warmup=2, steps=2,
    )  # fmt: skip


FILES: Mapping[str, Callable[[Row, str], MeasuredStep | None]] = {
    "models_h100": models_h100, "timm_train_rtx3090": timm_train, "timm_forward_consumer": timm_forward,
    "peft_l40s": peft_l40s, "lambda_gpus": lambda_gpus,
}  # fmt: skip


def read_steps(data: Path, files: tuple[str, ...] = ()) -> Iterator[MeasuredStep]:
    """The rows of the files that the folder has; a bad one is named."""
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    for name, made in FILES.items():
        path = folder / f"{name}.csv"
        if (files and name not in files) or not path.is_file():
            continue
        for line, row in csv_records(read_text(path), str(path), ()):
            try:
                found = made(row, f"{path.name} line {line}")
            except KeyError as missing:
                raise InputError(f"{path.name} line {line}", f"has no column {missing}") from None
            if found is not None:
                yield found


def family(model: str) -> str:
    """A timm model's family: the letters that its name starts with, without the port's prefix."""
    name = re.sub(r"^(tf|gluon|ssl|swsl|ig|seresnext|skresnet)_", "", model)
    found = re.match(r"[a-z]+", name)
    return found.group() if found else name
