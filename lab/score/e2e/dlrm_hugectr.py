"""MLPerf's DLRM-DCNv2 as HugeCTR trains it: rounds 4.1 on (``mlperf_dlrm_dcnv2.csv``) and the earlier ones of
``dlrm_multi_gpu.csv``, which have the same columns under other names. DLRM of rounds up to 2.1 ran on another
embedding (HybridSparseEmbedding) that has no model here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.datasets.criteo import CRITEO, MULTI_HOT_ROWS, MULTI_HOT_SIZES
from lab.datasets.folder import read_csv
from lab.datasets.llm.case import catalogue_gpu, joined_gpus
from lab.score.steps import StepRow, each, score
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SET, EARLIER = "dlrm_hugectr", "dlrm_hugectr_earlier"
FILE, EARLIER_FILE = "e2e/mlperf_dlrm_dcnv2.csv", "e2e/dlrm_multi_gpu.csv"


def rows(data: Path) -> list[StepRow]:
    """Every row of the file, where it is there."""
    files = [(data / FILE, predicted), (data / EARLIER_FILE, _earlier)]
    return [row for path, how in files if path.is_file() for row in each(read_csv(path), how)]


def _earlier(row: dict[str, str]) -> StepRow | None:
    """A row of the rounds before."""
    if row["model"] != "dlrm_dcnv2":
        return None
    submitter = f"{row['url_or_path'].partition('/')[0]} {row['source'].rpartition('_')[2]}"
    renamed = {
        **row, "step_ms": row["iter_time_ms"], "submitter": submitter,
    }  # fmt: skip
    found = predicted(renamed)
    return found and replace(found, set=EARLIER)


def scores(found: Sequence[StepRow]) -> list[Score]:
    used = "all rows; no step time took part in a fit; the program was written from HugeCTR's source"
    lines = score(TOPIC, "HugeCTR's DLRM-DCNv2 (MLPerf)", [r for r in found if r.set == SET], used, 0.12)
    earlier = [r for r in found if r.set == EARLIER]
    for where, several in (("one node", False), ("several nodes", True)):
        rows = [r for r in earlier if bool(re.search(r" \d+x\d+x", r.name)) == several]
        lines += score(TOPIC, f"HugeCTR's DLRM-DCNv2, rounds 3.0–4.0, {where}", rows, used)
    return lines


def predicted(row: dict[str, str]) -> StepRow | None:
    """One row in its steady state; None for a board that is not in the catalogue."""
    gpu = catalogue_gpu(row["gpu"])
    if gpu is None or not row["step_ms"]:
        return None
    platform = platform_of(gpu, int(float(row["gpus"])), int(float(row["nodes"] or 0)))
    name = f"{row['submitter']} b{row['global_batch']} {platform}"
    prediction = predict(parse_workload(document(row), f"{FILE}: {name}"), load_platform(platform))
    return StepRow.of(name, float(row["step_ms"]), prediction, SET)


def platform_of(gpu: str, gpus: int, nodes: int) -> str:
    """The cluster of a row: nodes as stated, of eight GPUs where they are not; GB200 and GB300 are joined by
    NVLink across their nodes of four, up to a rack."""
    joined = joined_gpus(gpu, gpus) if gpu.startswith("GB") or not nodes else gpus // nodes
    return f"{gpus}x{gpu}" if joined >= gpus else f"{gpus // joined}x{joined}x{gpu}"


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
