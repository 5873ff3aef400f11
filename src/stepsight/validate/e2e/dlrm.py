"""DLRM on one GPU (``dlrm_single_gpu.csv``, read off a published plot, ±0.11 ms)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.tables.criteo import CRITEO, CRITEO_TB_ROWS, ORDERED
from stepsight.validate.steps import StepRow, each, read_csv, score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET = "dlrm_one_gpu"
FILE = "e2e/dlrm_single_gpu.csv"
GPUS = {"V100": "V100-SXM2-16G", "Xp": "TITAN-Xp", "P100": "P100-PCIE-16G"}
PUBLISHED = (
    ("published", "paper_E2E_error_pct"),
    ("published, shared overheads", "paper_shared_error_pct"),
)


def workload_document(model: str, batch: int) -> dict[str, Any]:
    """One of the measured DLRMs as a workload file would describe it."""
    tables: list[dict[str, Any]]
    if model == "DLRM_default":
        dense = {"features": 512, "bottom": [512, 64], "top": [1024, 1024, 1024, 1]}
        tables, loss = (
            [{"count": 8, "rows": 1_000_000, "dim": 64, "pooling": 100.0, "indices": ORDERED}],
            "mse",
        )
    elif model == "DLRM_DDP":
        dense = {"features": 128, "bottom": [128, 128, 128], "top": [512, 512, 512, 256, 1]}
        tables, loss = [{"count": 8, "rows": 80_000, "dim": 128, "pooling": 10.0, "indices": ORDERED}], "bce"
    else:
        dense = {"features": 13, "bottom": [512, 256, 128], "top": [1024, 1024, 512, 256, 1]}
        tables = [{"rows": rows, "dim": 128, "pooling": 1.0, "indices": CRITEO} for rows in CRITEO_TB_ROWS]
        loss = "bce"
    return {
        "kind": "dlrm", "batch": batch, "dense": {**dense, "interaction": "dot"}, "tables": tables,
        # As the kernel lists of the same programs show: gradients filled with zeros, the loss read, the
        # table-batched lookups and PyTorch of 2020. DLRM's loop synchronises before it looks at the clock.
        "training": {"optimizer": "sgd", "loss": loss, "zero_grad": "zero", "read_loss": True,
                     "sparse_update": "scattered", "stack": "2020", "synchronize": True},
        "parallel": {"ranks": 1},
    }  # fmt: skip


def rows(data: Path) -> list[StepRow]:
    """Every measured row."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """Our step times and the published predictor's, from its own errors."""
    used = "all rows; read off a plot; none was fitted, the program's parts were scored in sight of them"
    return score(TOPIC, "DLRM, one GPU", found, used, 0.0796)


def predicted(row: dict[str, str]) -> StepRow:
    """One row in its steady state."""
    workload = parse_workload(workload_document(row["model"], int(row["batch"])), f"{FILE}: {row['model']}")
    prediction = predict(workload, load_platform(f"1x{GPUS[row['gpu']]}"))
    measured = float(row["iter_ms_digitised"])
    published = tuple(
        (label, measured * (1 + float(row[column]) / 100)) for label, column in PUBLISHED if row[column]
    )
    return StepRow(
        f"{row['model']} b{row['batch']} {row['gpu']}", measured, prediction.step_us / 1e3,
        prediction.naive_us / 1e3, prediction.low_us / 1e3, prediction.high_us / 1e3, published,
        SET,
    )  # fmt: skip
