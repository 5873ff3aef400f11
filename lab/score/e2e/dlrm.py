"""DLRM on one GPU (``dlrm_single_gpu.csv``, read off a published plot, ±0.11 ms).

Boards are those of the catalogue. Host times come from the study's other models alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.datasets.criteo import CRITEO, CRITEO_TB_ROWS, ORDERED
from lab.datasets.folder import read_csv
from lab.fit.overheads.published import MODELS, NAME, WITHOUT
from lab.score.e2e.eager_2020 import Dlrm2020
from lab.score.steps import StepRow, each, score
from stepsight.overheads.tables import Overheads
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.workload.dlrm.config import read_dlrm

TOPIC = "e2e"
SET = "dlrm_one_gpu"
FILE = "e2e/dlrm_single_gpu.csv"
GPUS = {"V100": "V100-PCIE-32G", "Xp": "TITAN-Xp", "P100": "P100-PCIE-16G"}
"""Which V100 is not said. In the study's two lists of kernels fp32 products take as long as on the PCIe board
(−2 and 0 %; an SXM2 would take 11 and 8 % less)."""
PUBLISHED = (
    ("published", "paper_E2E_error_pct"),
    ("published, shared overheads", "paper_shared_error_pct"),
)


def rows(data: Path) -> list[StepRow]:
    """Every measured row of the study's models and boards."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """Our step times, and the published predictor's from its own errors."""
    used = "all rows; read off a plot; host times from the study's other models alone"
    return score(TOPIC, "DLRM, one GPU", found, used, 0.075)


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state; None for a model or a board that is not the study's."""
    model, gpu = row["model"], row["gpu"]
    if model not in MODELS or gpu not in GPUS:
        return None
    prediction = predict(workload(model, int(row["batch"])), machine(model, gpu))
    measured = float(row["iter_ms_digitised"])
    published = tuple(
        (label, measured * (1 + float(row[column]) / 100)) for label, column in PUBLISHED if row[column]
    )
    return StepRow.of(f"{model} b{row['batch']} {gpu}", measured, prediction, SET, published)


def machine(model: str, gpu: str) -> Platform:
    """A board of the catalogue with the study's host, by its other models."""
    platform = load_platform(f"1x{GPUS[gpu]}", [f"host.name={NAME}"])
    vars(platform)["overheads"] = Overheads.load(WITHOUT / f"without-{model}.json")
    return platform


def workload(model: str, batch: int) -> Dlrm2020:
    """One of the measured DLRMs."""
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
    document = {
        "kind": "dlrm", "batch": batch, "dense": {**dense, "interaction": "dot"}, "tables": tables,
        # As the kernel lists of the same programs show: gradients filled with zeros, the loss read, the
        # table-batched lookups and PyTorch of 2020. DLRM's loop synchronises before it looks at the clock.
        "training": {"optimizer": "sgd", "loss": loss, "zero_grad": "zero", "read_loss": True,
                     "sparse_update": "scattered", "synchronize": True},
        "parallel": {"ranks": 1},
    }  # fmt: skip
    return Dlrm2020(read_dlrm(document, f"{FILE}: {model}"))
