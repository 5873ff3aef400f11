"""DLRM as NVIDIA's PyTorch example and TorchRec train it (``dlrm_multi_gpu.csv``), 1 to 16 GPUs.

Rows of other stacks in the file (HugeCTR, MXNet, recommendation transformers) have no model here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.datasets.criteo import (
    CRITEO,
    CRITEO_TB_ROWS,
    FREQUENT_2_ROWS,
    FREQUENT_3_ROWS,
    FREQUENT_15_ROWS,
    MULTI_HOT_SIZES,
)
from lab.datasets.folder import read_csv
from lab.datasets.llm.case import catalogue_gpu
from lab.score.steps import StepRow, each, score
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SETS = {"NVIDIA": "dlrm_nvidia", "TorchRec": "dlrm_torchrec"}
"""The set of a row, by the first word of its name."""
FILE = "e2e/dlrm_multi_gpu.csv"
NVIDIA, TORCHREC = "NVIDIA/DeepLearningExamples", "facebookresearch/dlrm"
ROWS = {"DLRM small": FREQUENT_15_ROWS, "DLRM large": FREQUENT_3_ROWS, "DLRM xlarge": FREQUENT_2_ROWS}
PRECISIONS = {"AMP": "fp16", "TF32": "tf32", "FP32": "fp32"}
TORCHREC_HOST = "host.name=v100"
"""AWS p4d hosts have Cascade Lake CPUs of 2019, a generation with the hosts of V100s."""
SEEN = "the host's era and the time of a division there were chosen with these rows in sight"
MULTI_HOT = "104.54 GiB"
"""The model whose tables are those of MLPerf's multi-hot set, whose commands all pass --mmap_mode; TorchRec's
earlier figures are one-hot."""
GRAPHED = "@HEAD"
"""The revision whose published commands pass --cuda_graphs. Earlier ones cast by apex O2 (half-precision
parameters with fp32 copies), this one by torch's autocast with a gradient scaler."""


def rows(data: Path) -> list[StepRow]:
    """Every row of the two stacks that have a model."""
    return each(read_csv(data / FILE), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """NVIDIA's rows, and TorchRec's Criteo rows apart."""
    used = "all rows; no step time takes part in a fit; the program was written from the example's source"
    nvidia = [r for r in found if r.name.startswith("NVIDIA")]
    torchrec = [r for r in found if not r.name.startswith("NVIDIA")]
    by_board = [
        line
        for board in ("A100", "V100")
        for line in score(TOPIC, f"NVIDIA's DLRM: {board}", [r for r in nvidia if board in r.name], used)[:1]
    ]
    return [
        *score(TOPIC, "NVIDIA's DLRM, 1–16 GPUs", nvidia, used, 0.08),
        *by_board,
        *score(TOPIC, "TorchRec DLRM, Criteo", torchrec, f"{used}; {SEEN}", 0.20),
    ]


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state; None for a stack without a model."""
    if not row["iter_time_ms"] or not row["global_batch"]:
        return None
    board = nvidia_board(row["gpu"])
    known = row["model"] in ROWS and board and row["precision"] in PRECISIONS
    if row["source"] == NVIDIA and known:
        platform, document = f"{row['gpus']}x{board}", nvidia_document(row)
        revision = row["url_or_path"].partition("@")[2].partition(" ")[0]
        name = f"NVIDIA {row['model']} {row['precision']} b{document['batch']} {platform} {revision}"
        here = load_platform(platform)
    elif row["source"] == TORCHREC and row["gpu"].startswith("A100-40GB"):
        platform, document = f"{row['gpus']}xA100-SXM4-40G", torchrec_document(row)
        name = f"TorchRec {row['model']} b{document['batch']} {platform}"
        here = load_platform(platform, [TORCHREC_HOST])
    else:
        return None
    prediction = predict(parse_workload(document, f"{FILE}: {name}"), here)
    return StepRow.of(name, float(row["iter_time_ms"]), prediction, SETS[name.split()[0]])


def nvidia_board(text: str) -> str | None:
    """The board of ``8x A100 80GB``, ``DGX A100 40GB``, ``DGX-2``: sixteen V100 are a DGX-2, whose boards
    are SXM3; a DGX-1 has 32 GB boards in this example."""
    if re.search(r"DGX-?2|16x *V100", text):
        return "V100-SXM3-32G"
    return catalogue_gpu("V100 32GB" if text.startswith("DGX-1") else text)


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


def torchrec_document(row: dict[str, str]) -> dict[str, Any]:
    """The workload file of one of TorchRec's Criteo rows; fp32 products (torch's default)."""
    multi = MULTI_HOT in row["model"]
    sizes = zip(CRITEO_TB_ROWS, MULTI_HOT_SIZES, strict=True) if multi else ((n, 1) for n in FREQUENT_3_ROWS)
    adagrad = "Adagrad" in row["model"]
    return {
        "kind": "dlrm", "batch": int(float(row["global_batch"])),
        "dense": {
            "features": 13, "bottom": [512, 256, 128], "top": [1024, 1024, 512, 256, 1],
            "interaction": "dcnv2" if "DCNv2" in row["model"] else "dot",
        },
        "tables": [{"rows": n, "dim": 128, "pooling": float(p), "indices": CRITEO} for n, p in sizes],
        "training": {
            "optimizer": "adagrad" if adagrad else "sgd", "loss": "bce_logits", "stack": "torchrec",
            "sparse_optimizer": "rowwise_adagrad" if adagrad else "sgd",
            "loader": "mapped" if multi else "memory",
        },
        "parallel": {"ranks": int(row["gpus"])},
    }  # fmt: skip
