"""Lookup kernels that other people measured on GPUs, as the model takes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.kernels.embedding.fit_gpu import MeasuredKernel
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import Lookup, TableLookup
from stepsight.platform.gpus import load_gpu
from stepsight.platform.spec import GpuSpec
from stepsight.workload.program import Kernel

V100, A100, H100 = "V100-SXM2-32G", "A100-SXM4-40G", "H100-SXM-80G"
POINTS, DEFAULT, MLPERF, REPORTS = "V100 points", "DLRM_default list", "DLRM_MLPerf list", "H100 report"
FORWARD, BACKWARD = "embedding", "embedding_backward"
UNKNOWN_INDICES = IndexDistribution.zipf(1.05)
"""What stands in where a trace does not tell which rows were asked for."""
LITTLE_KNOWN = 0.3
"""Weight of a kernel whose indices matter and are not known."""

# Rows of the 26 tables of Criteo's terabyte click logs at 40 million at most (MLPerf training, DLRM).
CRITEO_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155,
    4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip


def gpu(name: str) -> GpuSpec:
    return load_gpu(name)


def measured_kernels(data: Path) -> list[MeasuredKernel]:
    """Everything the folder of measured tables holds on lookup kernels of known sizes."""
    folder = data / "kernels"
    return [
        *_points(folder / "v100_embedding_kernels.csv"),
        *_list(folder / "v100_DLRM_default_2048_kernels.csv", DEFAULT, _default_tables()),
        *_list(folder / "v100_DLRM_MLPerf_2048_kernels.csv", MLPERF, _mlperf_tables()),
        *_reports(folder / "embedding_points.csv"),
        *_traced(folder / "trace_kernels.parquet"),
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise InputError(str(path), "no such table", "check --data")
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _points(path: Path) -> Iterator[MeasuredKernel]:
    """The table-batched kernels of 2020, each timed again and again on the same batch."""
    for row in _rows(path):
        batch, rows, tables, pooling, dim = (int(row[name]) for name in "BETLD")
        table = TableLookup(rows, dim, batch, pooling, IndexDistribution.uniform())
        lookup = Lookup((table,) * tables, sorted_update=False, replayed=True)
        family = FORWARD if row["op"].endswith("fwd") else BACKWARD
        yield MeasuredKernel(POINTS, gpu(V100), Kernel(family, lookup=lookup), float(row["kernel_us"]))


def _default_tables() -> tuple[TableLookup, ...]:
    return (TableLookup(1_000_000, 64, 2048, 100, IndexDistribution.uniform()),) * 8


def _mlperf_tables() -> tuple[TableLookup, ...]:
    return tuple(TableLookup(rows, 128, 2048, 1, UNKNOWN_INDICES) for rows in CRITEO_ROWS)


def _list(path: Path, source: str, tables: tuple[TableLookup, ...]) -> Iterator[MeasuredKernel]:
    """The lookup kernels in the list of all kernels of a DLRM step (batch 2048)."""
    lookup = Lookup(tables, sorted_update=False)
    with path.open(newline="") as file:
        for row in csv.reader(file):
            for name, family in (("forward", FORWARD), ("backward_sgd", BACKWARD)):
                column = next((i for i, c in enumerate(row) if f"batched_embedding_{name}_kernel" in c), None)
                if column is not None:
                    yield MeasuredKernel(
                        source, gpu(V100), Kernel(family, lookup=lookup), float(row[column + 2])
                    )


def _reports(path: Path) -> Iterator[MeasuredKernel]:
    """FBGEMM backward kernels of a public benchmark on an H100 (one lookup a bag)."""
    for row in _rows(path):
        if "H100 80GB" not in row["gpu"] or row["phase"] != "bwd+opt":
            continue
        table = TableLookup(
            int(row["E_rows"]), int(row["D"]), int(row["B"]), float(row["L_bag"]),
            IndexDistribution.zipf(float(row["alpha"])),
        )  # fmt: skip
        optimizer = "adam" if "Adam" in row["kernel"] else "sgd"
        lookup = Lookup((table,) * int(row["T_tables"]), optimizer)
        kernel = Kernel(BACKWARD, lookup=lookup)
        yield MeasuredKernel(f"{REPORTS}, {optimizer}", gpu(H100), kernel, float(row["time_us"]))


def _traced(path: Path) -> Iterator[MeasuredKernel]:
    """FBGEMM forward kernels in profiler traces, with the sizes their operators show."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    gradients: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        dims = json.loads(row["input_dims"] or "[]")
        if "SplitLookupFunction" in (row["op"] or "") and dims and len(dims[0]) == 2:
            gradients.setdefault(row["file"], []).append((dims[0][0], dims[0][1]))
    for row in rows:
        if "split_embedding_codegen_forward" in (row["kernel"] or ""):
            found = _traced_kernel(row, gradients.get(row["file"], []))
            if found is not None:
                yield found


def _traced_kernel(row: Mapping[str, Any], gradients: Sequence[tuple[int, int]]) -> MeasuredKernel | None:
    dims = json.loads(row["input_dims"])
    tables, lookups, offsets = dims[4][0], dims[11][0], dims[12][0]
    values = max(d[0] for d in dims[:4])
    batch = (offsets - 1) // tables
    widths = [columns / tables for bags, columns in gradients if bags == batch]
    if not widths:
        return None
    # Rowwise state has one value a row, so it tells the width of rows, if not of the mean table.
    told = values / max(dims[20][0], 1) if "rowwise" in row["op"] else widths[0]
    dim = max(round(min(widths, key=lambda width: abs(width / told - 1))), 1)
    table = TableLookup(
        rows=max(values // (tables * dim), 1), dim=dim, batch=batch, pooling=lookups / (batch * tables),
        indices=UNKNOWN_INDICES, dtype="fp16" if "Half" in row["kernel"] else "fp32",
        weighted="_weighted_" in row["kernel"],
    )  # fmt: skip
    known = row["gpu"] or ""
    spec = gpu(V100 if "V100" in known else A100)
    kernel = Kernel(FORWARD, lookup=Lookup((table,) * tables, "rowwise_adagrad"))
    fits_cache = values * 4 < spec.l2_mb * 2**20
    source = f"trace {row['source']}" + ("" if known else ", GPU unnamed")
    return MeasuredKernel(source, spec, kernel, row["dur_us_mean"], 1.0 if fits_cache else LITTLE_KNOWN)
