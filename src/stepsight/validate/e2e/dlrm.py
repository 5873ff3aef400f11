"""DLRM on one GPU (``dlrm_single_gpu.csv``, read off a published plot, ±0.11 ms)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepsight.fitting.dlrm_study import GPUS, active_ms, shipped_speeds, workload_document
from stepsight.fitting.overheads.recommendation import MODELS, NAME
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.validate.steps import StepRow, each, read_csv, score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET = "dlrm_one_gpu"
FILE = "e2e/dlrm_single_gpu.csv"
PUBLISHED = (
    ("published", "paper_E2E_error_pct"),
    ("published, shared overheads", "paper_shared_error_pct"),
)


def rows(data: Path) -> list[StepRow]:
    """Every measured row."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """Our step times and the published predictor's, from its own errors; the active time beside."""
    used = "all rows; read off a plot; host times and board speed from the study's other models alone"
    lines = score(TOPIC, "DLRM, one GPU", found, used, 0.075)
    known = [r for r in found if r.measured_active_ms and r.active_ms]
    if known:
        ours = [r.active_ms or 0.0 for r in known]
        truth = [r.measured_active_ms or 0.0 for r in known]
        lines.append(Score.of(TOPIC, "DLRM, one GPU: active time", ours, truth, f"{used}; not clipped"))
    return lines


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state, on the study's board and host without its own model's figures; None for
    a model or a board that is not the study's."""
    model, gpu = row["model"], row["gpu"]
    if model not in MODELS or gpu not in GPUS:
        return None
    workload = parse_workload(workload_document(model, int(row["batch"])), f"{FILE}: {model}")
    prediction = predict(workload, machine(model, gpu))
    measured = float(row["iter_ms_digitised"])
    published = tuple(
        (label, measured * (1 + float(row[column]) / 100)) for label, column in PUBLISHED if row[column]
    )
    return StepRow(
        f"{model} b{row['batch']} {gpu}", measured, prediction.step_us / 1e3, prediction.naive_us / 1e3,
        prediction.low_us / 1e3, prediction.high_us / 1e3, published, SET, prediction.gpu_active_us / 1e3,
        active_ms(row),
    )  # fmt: skip


def machine(model: str, gpu: str) -> Platform:
    """A board and the host of the study, by what its other models say of them."""
    host = f"{NAME}-without-{model}"
    speeds = shipped_speeds().get(gpu, {})
    speed = speeds.get(model) or (float(np.mean(list(speeds.values()))) if speeds else 1.0)
    return load_platform(f"1x{GPUS[gpu]}", [f"host.name={host}", f"gpu.speed={speed}"])
