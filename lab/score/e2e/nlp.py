"""FP32 eager transformers: forward, and forward with backward, on one GPU and on four (``nlp_fp32.csv``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.datasets.folder import read_csv
from lab.score.steps import StepRow, each, score
from stepsight.hardware.gpus import find_gpu
from stepsight.platform.load import load_platform
from stepsight.prediction.answer import predict_job
from stepsight.program.job import Job, RankProgram
from stepsight.score import Score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
FILE = "e2e/nlp_fp32.csv"
MORE = "e2e/nlp_fp32_more.csv"
"""The same kind of steps, most of them on AMD GPUs, of which no kernel table is in the fits."""
BAR = 0.04
"""GMAE asked of rows on one GPU."""
MODELS: dict[str, dict[str, Any]] = {
    # Sizes of the published models; gpt3_xl as GPT-3's table 2.1 has its heads (24 × 128).
    "bert_large": {"family": "bert", "layers": 24, "hidden": 1024, "heads": 16, "vocab": 30522},
    "gpt2_large": {"family": "gpt2", "layers": 36, "hidden": 1280, "heads": 20, "vocab": 50257},
    "gpt3_xl": {"family": "gpt2", "layers": 24, "hidden": 3072, "heads": 24, "vocab": 50257},
    "gpt3_27": {"family": "gpt2", "layers": 32, "hidden": 2560, "heads": 32, "vocab": 50257},
    "opt_13": {"family": "opt", "layers": 24, "hidden": 2048, "heads": 32, "vocab": 50272},
}
WITHOUT_HEAD = ("bert_large", "opt_13")
"""In inference these were measured without the language-model head: the roofline that stands
next to each row fits our operator stream to 1–2 % without it and is 9 % and 5 % off with it;
all training rows fit with it."""
_SPLIT = re.compile(r"(dp|tp|pp)(\d+)(?:_(\d+))?")
OTHERS = ("neusight_ms", "habitat_ms", "roofline_ms", "micro_ms")


def rows(data: Path) -> list[StepRow]:
    """Every row that the tool has a model of: eager, no mixture of experts, no fused kernels."""
    found = read_csv(data / FILE) + [{**row, "other": "yes"} for row in read_csv(data / MORE)]
    return each((r for r in found if r["model"] in MODELS and _known(r["option"])), predicted)


def _known(option: str) -> bool:
    return not option or _SPLIT.fullmatch(option) is not None


def _layout(option: str, batch: int) -> tuple[dict[str, int], int, int]:
    """The axes, the sequences of a replica, and the GPUs: ``tp4``; ``dp4``, which shares the batch out;
    ``pp4_1``, four stages that pass on one micro-batch."""
    split = _SPLIT.fullmatch(option)
    if split is None:
        return {"data": 1}, batch, 1
    gpus, micro_batches = int(split[2]), int(split[3] or 1)
    if split[1] == "dp":
        return {"data": gpus}, batch // gpus, gpus
    if split[1] == "tp":
        return {"tensor": gpus}, batch, gpus
    return {"pipeline": gpus, "micro_batch": batch // micro_batches}, batch, gpus


def scores(found: Sequence[StepRow]) -> list[Score]:
    """Forward only, and forward with backward, with four other predictors concurrent."""
    used = "eager, one GPU; no Switch (mixture of experts), no fused rows; shares fitted on operators"
    four = "eager, four GPUs split by data, tensor or pipeline; shares fitted on operators"
    by_set = {name: [r for r in found if r.set == name] for name in dict.fromkeys(r.set for r in found)}
    train, other = by_set.get("nlp_train", []), by_set.get("nlp_other_train", [])
    return [
        *score(TOPIC, "NLP fp32 forward+backward", train, used, BAR),
        *score(TOPIC, "NLP fp32 forward", by_set.get("nlp_forward", []), used, BAR),
        *score(TOPIC, "NLP fp32 forward+backward on 4 GPUs", by_set.get("nlp_split_train", []), four),
        *score(TOPIC, "NLP fp32 forward+backward, AMD and P4", other, used),
        *score(TOPIC, "NLP fp32 forward, AMD and P4", by_set.get("nlp_other_forward", []), used),
    ]


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row: a single pass from a standing start, as it was measured; None for an unknown GPU."""
    if find_gpu(row["device"]) is None:
        return None
    training = row["mode"] == "train"
    head = "none" if not training and row["model"] in WITHOUT_HEAD else "lm"
    parallel, batch, gpus = _layout(row["option"], int(row["batch"]))
    # Gradients are added to those of the pass before: the operators of these runs state what that takes
    # (accumulate_us in nlp_ops_fp32.parquet).
    steps = {
        "framework": "eager", "optimizer": "none", "loss": "none", "dropout": 0.1 if training else 0.0,
        "zero_grad": "zero",
    }  # fmt: skip
    document = {
        "kind": "transformer", **MODELS[row["model"]],
        "sequence": int(row["seqlen"]), "batch_per_rank": batch, "head": head,
        "training": steps,
        "parallel": parallel,
    }  # fmt: skip
    workload = parse_workload(document, f"{FILE}: {row['model']}")
    job = workload.job() if training else forward_only(workload.job())
    prediction = predict_job(job, load_platform(f"{gpus}x{row['device']}"), steps=1)
    others = tuple((name.removesuffix("_ms"), float(row[name])) for name in OTHERS if row.get(name))
    name = f"{row['model']} {row['mode']} b{row['batch']} {row['option']} {row['device']}".replace("  ", " ")
    where = "split_" if gpus > 1 else "other_" if row.get("other") else ""
    found = f"nlp_{where}{'train' if training else 'forward'}"
    return StepRow.of(name, float(row["e2e_ms"]), prediction, found, others)


def forward_only(job: Job) -> Job:
    """The part of a job that inference runs; nothing in it waits for what is cut off."""
    kept = tuple(
        RankProgram(tuple(op for op in p.ops if op.phase == "forward"), p.name) for p in job.programs
    )
    return replace(job, programs=kept)
