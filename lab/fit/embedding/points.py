"""Lookup kernels that other people measured on GPUs, as the model takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from lab.datasets.criteo import CRITEO, CRITEO_TB_ROWS, MULTI_HOT_ROWS, MULTI_HOT_SIZES, ORDERED
from lab.datasets.folder import read_csv
from lab.fit.embedding.gpu import BACKWARDS, MeasuredKernel
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.program.job import Kernel
from stepsight.tables.bags import traced_spread
from stepsight.tables.indices.distributions import UNKNOWN_INDICES, IndexDistribution
from stepsight.tables.lookup import SCATTERED, Lookup, TableLookup

V100, A100, H100 = "V100-SXM2-32G", "A100-SXM4-40G", "H100-SXM-80G"
POINTS, REPORTS = "V100 points", "H100 report"
FORWARD, BACKWARD = "embedding", "embedding_backward"
MOST_BLOCKS_PER_SM, IDLE_BLOCK_CYCLES = 64, 180.0
"""What FBGEMM launches at most since 2023, and how long an SM is busy with a block that does nothing: in one
trace on an A100 3,900 such blocks take 12 µs and 988,000 take 1,201 µs."""
WIDEST = {"hta/tests/data/trace_diff/control/control.json.gz": 256}
"""The widest row of a trace whose mean row is narrower: blocks of its backward hold 32 KB of sums."""
FEW_TABLES = 3
"""With more, sums of rows and of lookups leave it open which tables of a known model they are."""
LITTLE_KNOWN = 0.3
"""Weight of a kernel whose indices matter and are not known, or the lengths of whose bags: those of a few
tables are soon done but for the longest."""

DEFAULT, MLPERF, DDP = "DLRM_default list", "DLRM_MLPerf list", "DLRM_DDP list"
LISTED = {
    "default": (DEFAULT, (1_000_000,) * 8, 64, 100, ORDERED),
    "MLPerf": (MLPERF, CRITEO_TB_ROWS, 128, 1, CRITEO),
    "DDP": (DDP, (80_000,) * 8, 128, 10, ORDERED),
}
"""DLRM programs by the name in their list's file: source, rows of each table, dim, pooling, indices."""


def multi_hot_tables(tables: int, rows: float, pooling: float) -> Sequence[tuple[int, int]]:
    """Rows and lookups per bag of a few tables of MLPerf's multi-hot model, if some add up to exactly these:
    a published trace of that model records sums over the tables of a rank alone."""
    if tables > FEW_TABLES:
        return ()
    known = zip(MULTI_HOT_ROWS, MULTI_HOT_SIZES, strict=True)
    for some in combinations(known, tables):
        if sum(r for r, _ in some) == rows and sum(p for _, p in some) == pooling:
            return some
    return ()


def measured_kernels(data: Path) -> list[MeasuredKernel]:
    """Everything the folder of measured tables holds on lookup kernels of known sizes."""
    folder = data / "kernels"
    readers = {
        "v100_embedding_kernels.csv": _points,
        "v100_DLRM_*_kernels.csv": _list,
        "embedding_points.csv": _reports,
        "trace_kernels.parquet": _traced,
    }
    files = [(read, path) for name, read in readers.items() for path in sorted(folder.glob(name))]
    if not files:
        raise InputError(str(folder), f"has none of {', '.join(readers)}", "check --data")
    return [point for read, path in files for point in read(path)]


def _points(path: Path) -> Iterator[MeasuredKernel]:
    """The table-batched kernels of 2020, each timed again and again on the same batch."""
    for row in read_csv(path):
        batch, rows, tables, pooling, dim = (int(row[name]) for name in "BETLD")
        table = TableLookup(rows, dim, batch, pooling, IndexDistribution.uniform())
        lookup = Lookup((table,) * tables, update=SCATTERED, replayed=True)
        family = FORWARD if row["op"].endswith("fwd") else BACKWARD
        yield MeasuredKernel(POINTS, load_gpu(V100), Kernel(family, lookup=lookup), float(row["kernel_us"]))


def _list(path: Path) -> Iterator[MeasuredKernel]:
    """The lookup kernels in the list of all kernels of a DLRM step."""
    model, batch = path.stem.removeprefix("v100_DLRM_").removesuffix("_kernels").rsplit("_", 1)
    if model not in LISTED:
        return
    source, rows, dim, pooling, value = LISTED[model]
    indices = IndexDistribution.parse(value, str(path))
    lookup = Lookup(tuple(TableLookup(r, dim, int(batch), pooling, indices) for r in rows), update=SCATTERED)
    for row in read_csv(path):
        for name, family in (("forward", FORWARD), ("backward_sgd", BACKWARD)):
            if f"batched_embedding_{name}_kernel" in row["kernel"]:
                kernel = Kernel(family, lookup=lookup)
                yield MeasuredKernel(source, load_gpu(V100), kernel, float(row["mean_us"]))


def _reports(path: Path) -> Iterator[MeasuredKernel]:
    """FBGEMM backward kernels of a public benchmark on an H100 (one lookup a bag)."""
    for row in read_csv(path):
        if "H100 80GB" not in row["gpu"] or row["phase"] != "bwd+opt":
            continue
        table = TableLookup(
            int(row["E_rows"]), int(row["D"]), int(row["B"]), float(row["L_bag"]),
            IndexDistribution.zipf(float(row["alpha"])),
        )  # fmt: skip
        optimizer = "adam" if "Adam" in row["kernel"] else "sgd"
        lookup = Lookup((table,) * int(row["T_tables"]), optimizer)
        kernel = Kernel(BACKWARD, lookup=lookup)
        yield MeasuredKernel(f"{REPORTS}, {optimizer}", load_gpu(H100), kernel, float(row["time_us"]))


def _traced(path: Path) -> Iterator[MeasuredKernel]:
    """FBGEMM kernels in profiler traces, with the sizes their operators show."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    gradients: dict[str, list[tuple[int, int]]] = {}
    backwards: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        dims = json.loads(row["input_dims"] or "[]")
        if "SplitLookupFunction" in (row["op"] or "") and dims and len(dims[0]) == 2:
            gradients.setdefault(row["file"], []).append((dims[0][0], dims[0][1]))
            backwards.setdefault((row["file"], dims[0][0] * dims[0][1]), []).append(row)
    seen: dict[tuple[str, int], list[MeasuredKernel]] = {}
    for row in rows:
        if "split_embedding_codegen_forward" in (row["kernel"] or ""):
            found = _traced_kernel(row, gradients.get(row["file"], []))
            if found is not None and found.kernel.lookup is not None:
                tables = found.kernel.lookup.tables
                uneven = len(tables) <= FEW_TABLES and tables[0].bag_spread > 0
                yield replace(found, weight=LITTLE_KNOWN) if uneven else found
                width = sum(table.batch * table.dim for table in tables)
                nearest = min(
                    (values for file, values in backwards if file == row["file"]),
                    key=lambda v: abs(v - width),
                )
                seen.setdefault((row["file"], nearest), []).append(found)
    for key, forwards in seen.items():
        if any("linearize_index" in row["kernel"] for row in backwards[key]):
            found = _traced_backward(forwards, backwards[key])
            if found.time_us > found.arranged_us > 0:  # both the sort and the update were recorded
                yield found


def _traced_backward(
    forwards: Sequence[MeasuredKernel], kernels: Sequence[Mapping[str, Any]]
) -> MeasuredKernel:
    """All kernels of one backward together, on average over the trace's calls."""
    calls = sum(row["n"] for row in kernels if "linearize_index" in row["kernel"])
    ours = [row for row in kernels if "grad_indice_weights" not in row["kernel"]]
    time_us = sum(row["n"] * row["dur_us_mean"] for row in ours) / calls + _lost_passes_us(ours) / calls
    arranged_us = time_us - sum(r["n"] * r["dur_us_mean"] for r in ours if "_per_row" in r["kernel"]) / calls
    middle = forwards[len(forwards) // 2]
    assert middle.kernel.lookup is not None
    time_us -= _idle_blocks_us(ours, middle.gpu) / calls
    lookup = replace(middle.kernel.lookup, optimizer=_optimizer(kernels[0]["op"]))
    kernel = Kernel(BACKWARD, lookup=lookup)
    source = middle.source + BACKWARDS
    return MeasuredKernel(source, middle.gpu, kernel, time_us, middle.weight, arranged_us)


def _idle_blocks_us(kernels: Sequence[Mapping[str, Any]], gpu: GpuSpec) -> float:
    """Blocks of warps that find no row to update: releases before 2023 launched one for every 16 lookups,
    later ones at most `MOST_BLOCKS_PER_SM`."""
    blocks = sum(row["n"] * json.loads(row["grid"])[0] for row in kernels if "_warp_per_row" in row["kernel"])
    calls = sum(row["n"] for row in kernels if "_warp_per_row" in row["kernel"])
    beyond = max(blocks - calls * MOST_BLOCKS_PER_SM * gpu.sms, 0)
    return float(beyond * IDLE_BLOCK_CYCLES / gpu.sms / gpu.clock_mhz)


def _lost_passes_us(kernels: Sequence[Mapping[str, Any]]) -> float:
    """Passes of the sorts that a sampled profile lacks: the sums before them have a block a pass."""
    passes = [row for row in kernels if "Onesweep" in row["kernel"]]
    seen = sum(row["n"] for row in passes)
    sums = [row for row in kernels if "ExclusiveSum" in row["kernel"]]
    run = sum(row["n"] * json.loads(row["grid"])[0] for row in sums)
    return max(run - seen, 0) * sum(row["n"] * row["dur_us_mean"] for row in passes) / seen if seen else 0.0


def _optimizer(op: str) -> str:
    return "rowwise_adagrad" if "rowwise_adagrad" in op else "adagrad" if "adagrad" in op else "sgd"


def _traced_kernel(row: Mapping[str, Any], gradients: Sequence[tuple[int, int]]) -> MeasuredKernel | None:
    dims = json.loads(row["input_dims"])
    tables, lookups, offsets = dims[4][0], dims[11][0], dims[12][0]
    values = max(d[0] for d in dims[:4])
    batch = (offsets - 1) // tables
    widths = [columns / tables for bags, columns in gradients if bags == batch]
    if not widths:
        return None
    # Rowwise state has one value a row, so it tells the width of rows, if not of the mean table.
    known = values / max(dims[20][0], 1) if "rowwise" in row["op"] else widths[0]
    dim = max(round(min(widths, key=lambda width: abs(width / known - 1))), 1)
    dtype, weighted = "fp16" if "Half" in row["kernel"] else "fp32", "_weighted_" in row["kernel"]
    looked_up = tuple(
        TableLookup(rows, dim, batch, pooling, IndexDistribution.parse(CRITEO, row["file"]), dtype, weighted)
        for rows, pooling in multi_hot_tables(tables, values / dim, lookups / batch)
    )
    if not looked_up:
        rows, pooling = max(values // (tables * dim), 1), lookups / (batch * tables)
        spread = traced_spread(lookups, batch, tables)
        table = TableLookup(rows, dim, batch, pooling, UNKNOWN_INDICES, dtype, weighted, spread)
        looked_up = (replace(table, dim=max(WIDEST.get(row["file"], dim), dim)), *(table,) * (tables - 1))
    known = row["gpu"] or ""
    spec = load_gpu(V100 if "V100" in known else A100)
    kernel = Kernel(FORWARD, lookup=Lookup(looked_up, "rowwise_adagrad"))
    fits_cache = min(values, lookups * dim) * 4 < spec.l2_mb * 2**20
    source = f"trace {row['source']}" + ("" if known else ", GPU unnamed")
    return MeasuredKernel(source, spec, kernel, row["dur_us_mean"], 1.0 if fits_cache else LITTLE_KNOWN)
