"""MLPerf's DLRM-DCNv2 as HugeCTR trains it (``mlperf_dlrm_dcnv2.csv``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.datasets.folder import read_csv
from lab.score.steps import StepRow, each, score
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import BLIND, Score
from stepsight.tables.criteo import CRITEO, MULTI_HOT_ROWS, MULTI_HOT_SIZES
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET = "dlrm_hugectr"
FILE = "e2e/mlperf_dlrm_dcnv2.csv"
GPUS = {
    "H100": "H100-SXM-80G", "H200": "H200-SXM-141G", "B200": "B200-SXM-180G", "B300": "B300-SXM-288G",
    "GB200": "GB200-186G", "GB300": "GB300-288G",
}  # fmt: skip
RACK = 72
"""GPUs of a GB200 or GB300 rack that one NVLink domain joins."""


def rows(data: Path) -> list[StepRow]:
    """Every row of the file, where it is there."""
    path = data / FILE
    return each(read_csv(path), predicted) if path.is_file() else []


def scores(found: Sequence[StepRow]) -> list[Score]:
    used = "all rows; no step time took part in a fit or in the writing of the stack's program"
    return score(TOPIC, "HugeCTR's DLRM-DCNv2 (MLPerf)", found, used, 0.12, exposure=BLIND)


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state; None for a board that is not in the catalogue."""
    match = re.match(r"(GB\d+|[A-Z]\d+)", row["gpu"])
    gpu = GPUS.get(match[1]) if match else None
    if gpu is None or not row["step_ms"]:
        return None
    gpus, nodes = int(float(row["gpus"])), max(int(float(row["nodes"] or 1)), 1)
    if gpu.startswith("GB") and gpus <= RACK:
        nodes = 1
    platform = f"{gpus}x{gpu}" if nodes == 1 else f"{nodes}x{gpus // nodes}x{gpu}"
    name = f"{row['submitter']} b{row['global_batch']} {platform}"
    prediction = predict(parse_workload(document(row), f"{FILE}: {name}"), load_platform(platform))
    return StepRow(
        name, float(row["step_ms"]), prediction.step_us / 1e3, prediction.naive_us / 1e3,
        prediction.low_us / 1e3, prediction.high_us / 1e3, set=SET,
    )  # fmt: skip


def document(row: dict[str, str]) -> dict[str, Any]:
    """The workload file of one row."""
    sizes = zip(MULTI_HOT_ROWS, MULTI_HOT_SIZES, strict=True)
    return {
        "kind": "dlrm", "batch": int(float(row["global_batch"])),
        "dense": {"features": 13, "bottom": [512, 256, 128], "top": [1024, 1024, 512, 256, 1],
                  "interaction": "dcnv2", "cross_layers": 3, "cross_rank": 512},
        "tables": [{"rows": n, "dim": 128, "pooling": float(p), "indices": CRITEO} for n, p in sizes],
        "training": {"stack": "hugectr", "precision": "fp16", "optimizer": "adagrad", "loss": "bce_logits"},
        "parallel": {"ranks": int(float(row["gpus"]))},
    }  # fmt: skip
