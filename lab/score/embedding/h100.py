"""FBGEMM's lookups on an H100 (``kernels/embedding_fbgemm_h100.csv``), whose rows lie on the device, in host
memory, or there with a cache. Nothing is fitted on them.

The benchmark (NVIDIA/recsys-examples, corelib/dynamicemb) looks up one row per bag in fp32, goes through
`BATCHES` batches again and again, and sizes the cache by the rows of all of them (``cache_footprint_ratio``)
or, in its first version, by `CACHE_LOAD_FACTOR` of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.datasets.folder import read_csv
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.embedding.model import FAMILIES, EmbeddingModel
from stepsight.program.job import Kernel
from stepsight.score import CHOSEN, Score, gmae
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup
from stepsight.tables.table import DEVICE, UVM, UVM_CACHING

FILE = "kernels/embedding_fbgemm_h100.csv"
KEY = "embedding_fbgemm_h100"
PHASES = ("forward", "backward")
BAR = 0.15
BATCHES, CACHE_LOAD_FACTOR = 100, 0.125
"""Defaults of the benchmark's script (--num_iterations, --gpu_ratio)."""
PLACEMENTS = {"HBM": DEVICE, "UVM": UVM, "UVM cached": UVM_CACHING}


def each(data: Path) -> list[dict[str, Any]]:
    """Every row: what it is, and measured and predicted times of both phases in ms."""
    path = data / FILE
    if not path.is_file():
        return []
    model = EmbeddingModel.for_gpu(load_gpu("H100-SXM-80G"))
    found = []
    for row in read_csv(path):
        lookup = lookup_of(row)
        times = model.estimate([Kernel(family, lookup=lookup) for family in FAMILIES]).time_us / 1e3
        entry: dict[str, Any] = {"name": row["label"], "storage": row["storage"]}
        for phase, predicted in zip(PHASES, times.tolist(), strict=True):
            entry[f"{phase}_ms"] = float(row[f"fbgemm_{phase}_ms"])
            entry[f"predicted_{phase}_ms"] = predicted
        found.append(entry)
    return found


def figures(data: Path) -> dict[str, Any]:
    """``rows``, ``forward_gmae`` and ``backward_gmae``; empty where the file is absent."""
    rows = each(data)
    if not rows:
        return {}
    return {"rows": len(rows), **{f"{phase}_gmae": gmae(*_columns(rows, phase)) for phase in PHASES}}


def scores(data: Path) -> list[Score]:
    """Both phases as lines of the scorecard."""
    rows = each(data)
    used = "all rows; the fit of lookups holds one run of this report"
    return [
        Score.of("embedding", f"FBGEMM on an H100, {phase}", *_columns(rows, phase), used, gmae_target=BAR,
                 exposure=CHOSEN)
        for phase in PHASES
        if rows
    ]  # fmt: skip


def lookup_of(row: Mapping[str, str]) -> Lookup:
    """The lookup of one row: tables with one lookup per bag."""
    rows, batch, tables = (int(float(row[key])) for key in ("rows_per_table", "batch_per_table", "tables"))
    indices = _indices(rows, batch, float(row["unique_rows"]) / tables)
    share = CACHE_LOAD_FACTOR
    if row["cache_footprint_ratio"]:
        footprint = indices.stats(rows, BATCHES * batch).unique_rows
        share = min(float(row["cache_footprint_ratio"]) * footprint / rows, 1.0)
    table = TableLookup(
        rows, int(row["dim"]), batch, 1.0, indices, placement=PLACEMENTS[row["storage"]], cache_share=share
    )
    return Lookup((table,) * tables, row["optimizer"])


def _indices(rows: int, lookups: int, unique: float) -> IndexDistribution:
    """The power law whose batches ask for as many distinct rows as the file counted (the script draws by one
    of exponent 1.05, in a way of its own)."""
    low, high = 0.5, 1.5
    for _ in range(30):
        middle = (low + high) / 2
        if IndexDistribution.zipf(middle).stats(rows, lookups).unique_rows > unique:
            low = middle
        else:
            high = middle
    return IndexDistribution.zipf(round(middle, 4))


def _columns(rows: list[dict[str, Any]], phase: str) -> tuple[Any, Any]:
    return np.array([r[f"predicted_{phase}_ms"] for r in rows]), np.array([r[f"{phase}_ms"] for r in rows])
