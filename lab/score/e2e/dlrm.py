"""DLRM on one GPU (``dlrm_single_gpu.csv``, read off a published plot, ±0.11 ms)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.datasets.folder import read_csv
from lab.fit.dlrm_study import GPUS, active_ms, shipped_speeds, workload_document
from lab.fit.overheads.recommendation import MODELS, NAME
from lab.score.steps import StepRow, each, score
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.predict import predict
from stepsight.score import CHOSEN, Score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET = "dlrm_one_gpu"
FILE = "e2e/dlrm_single_gpu.csv"
PUBLISHED = (
    ("published", "paper_E2E_error_pct"),
    ("published, shared overheads", "paper_shared_error_pct"),
)


def rows(data: Path) -> list[StepRow]:
    """Every measured row, with the board's speed from other models; beside it from other boards and sizes."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """Our step times, also with other speeds of the board, the published predictor's, from its own errors,
    and the active time."""
    used = "all rows; read off a plot; host times and board speed from the study's other models alone"
    lines = score(TOPIC, "DLRM, one GPU", found, used, 0.075)
    known = [r for r in found if r.measured_active_ms and r.active_ms]
    if known:
        name, ours = "DLRM, one GPU: active time", [r.active_ms or 0.0 for r in known]
        truth = [r.measured_active_ms or 0.0 for r in known]
        lines.append(Score.of(TOPIC, name, ours, truth, f"{used}; not clipped", exposure=CHOSEN))
    return lines


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state, on the study's board and host without its own model's figures; None for
    a model or a board that is not the study's."""
    model, gpu = row["model"], row["gpu"]
    if model not in MODELS or gpu not in GPUS:
        return None
    batch = int(row["batch"])
    workload = parse_workload(workload_document(model, batch), f"{FILE}: {model}")
    prediction = predict(workload, machine(model, gpu, batch))
    measured = float(row["iter_ms_digitised"])
    published = tuple(
        (label, measured * (1 + float(row[column]) / 100)) for label, column in PUBLISHED if row[column]
    )
    variants = tuple(
        (
            f"board speed without this {what}",
            predict(workload, machine(model, gpu, batch, what)).step_us / 1e3,
        )
        for what in ("GPU", "batch")
    )
    return StepRow(
        f"{model} b{row['batch']} {gpu}", measured, prediction.step_us / 1e3, prediction.naive_us / 1e3,
        prediction.low_us / 1e3, prediction.high_us / 1e3, published, SET, prediction.gpu_active_us / 1e3,
        active_ms(row), variants=variants,
    )  # fmt: skip


def machine(model: str, gpu: str, batch: int = 0, left_out: str = "model") -> Platform:
    """A board and the host of the study: the host by its other models, the board's speed by the rows that
    do not share the model, the GPU or the batch size."""
    host = f"{NAME}-without-{model}"
    speed = shipped_speeds().of(gpu, model, batch, left_out)
    return load_platform(f"1x{GPUS[gpu]}", [f"host.name={host}", f"gpu.speed={speed}"])
