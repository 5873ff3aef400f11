"""DLRM as NVIDIA's PyTorch example and TorchRec train it (``dlrm_multi_gpu.csv``), 1 to 16 GPUs.

Rows of other stacks in the file (HugeCTR, MXNet, recommendation transformers) have no model here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.tables.criteo import CRITEO, FREQUENT_2_ROWS, FREQUENT_3_ROWS, FREQUENT_15_ROWS
from stepsight.validate.steps import StepRow, each, read_csv, score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET = "dlrm_multi_gpu"
FILE = "e2e/dlrm_multi_gpu.csv"
NVIDIA, TORCHREC = "NVIDIA/DeepLearningExamples", "facebookresearch/dlrm"
ROWS = {"DLRM small": FREQUENT_15_ROWS, "DLRM large": FREQUENT_3_ROWS, "DLRM xlarge": FREQUENT_2_ROWS}
GPUS = {
    "8x A100 80GB": "A100-SXM4-80G",
    "8x A100 40GB": "A100-SXM4-40G",
    "8x V100 32GB": "V100-SXM2-32G",
    "16x V100 32GB": "V100-SXM3-32G",
}
PRECISIONS = {"AMP": "fp16", "TF32": "tf32", "FP32": "fp32"}
GRAPHED = "@HEAD"
"""The revision whose published commands pass --cuda_graphs. Earlier ones cast by apex O2 (half-precision
parameters with fp32 copies), this one by torch's autocast with a gradient scaler."""
DISPUTED = 1.4
"""Rows of one configuration whose times differ by this factor between revisions: the truth disagrees."""


def rows(data: Path) -> list[StepRow]:
    """Every row of the two stacks that have a model."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """NVIDIA's rows, and TorchRec's Criteo rows apart."""
    used = "all rows; no step time takes part in a fit; the program was written from the example's source"
    nvidia = [r for r in found if r.name.startswith("NVIDIA")]
    torchrec = [r for r in found if not r.name.startswith("NVIDIA")]
    return [
        *score(TOPIC, "NVIDIA's DLRM, 1–16 GPUs", nvidia, used, 0.08),
        *score(TOPIC, "TorchRec DLRM, Criteo", torchrec, used, 0.20),
    ]


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state; None for a stack without a model."""
    if row["source"] == NVIDIA and row["model"] in ROWS and row["gpu"] in GPUS:
        platform, document = f"{row['gpus']}x{GPUS[row['gpu']]}", nvidia_document(row)
        revision = row["url_or_path"].partition("@")[2].partition(" ")[0]
        name = f"NVIDIA {row['model']} {row['precision']} b{document['batch']} {platform} {revision}"
    else:
        return None
    prediction = predict(parse_workload(document, f"{FILE}: {name}"), load_platform(platform))
    return StepRow(
        name, float(row["iter_time_ms"]), prediction.step_us / 1e3, prediction.naive_us / 1e3,
        prediction.low_us / 1e3, prediction.high_us / 1e3, set=SET,
    )  # fmt: skip


def nvidia_document(row: dict[str, str]) -> dict[str, Any]:
    """The workload file of one of NVIDIA's rows."""
    graphed = GRAPHED in row["url_or_path"]
    return {
        "kind": "dlrm", "batch": int(float(row["global_batch"])),
        "dense": {"features": 13, "bottom": [512, 256, 128], "top": [1024, 1024, 512, 256, 1]},
        "tables": [{"rows": n, "dim": 128, "pooling": 1.0, "indices": CRITEO} for n in ROWS[row["model"]]],
        "training": {
            "precision": PRECISIONS[row["precision"]], "optimizer": "sgd", "loss": "bce_logits",
            "stack": "nvidia", "cuda_graph": graphed,
            "master_weights": row["precision"] == "AMP" and not graphed,
        },
        "parallel": {"ranks": int(row["gpus"]), "sharding": "nvidia"},
    }  # fmt: skip
