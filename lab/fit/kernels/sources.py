"""Reading the measured tables that the shipped models are fitted on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.datasets.folder import read_table, serving_folder
from lab.datasets.kernel_tables.rows import Rows, rows_of
from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.prediction.kernel_times import Table

SHAPE_KEYS = {
    "conv": ("batch", "c_in", "c_out", "h"),
    "attention": ("batch", "heads", "kv_heads", "q", "head_dim"),
}
"""The sizes that make a shape, where not all do."""

STACKS = ("sglang", "vllm", "trtllm")
"""Serving stacks whose tables stand at the same time; the first is the default, as its
attention is plain FlashAttention and its GEMM torch's own linear layer."""

EVENT_TABLES = {
    "gemm_fp32": "fp32 GEMMs timed by CUDA events",
    "vector_fp32": "fp32 element-wise operators timed by CUDA events",
    "conv_fp32": "fp32 convolutions timed by CUDA events",
}
"""Tables, and what fitted models say of them: what ships names no file."""

SERVING_SYSTEMS = {
    "A100-SXM4-80G": "a100_sxm",
    "H100-SXM-80G": "h100_sxm",
    "H200-SXM-141G": "h200_sxm",
    "L40S": "l40s",
    "B200-SXM-180G": "b200_sxm",
}
"""Catalogue name → folder of the aiconfigurator-core tables."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured rows of one family, dtype and variant on one GPU."""

    gpu: str
    batch: Batch
    variant: str
    time_us: FloatArray
    stacks: Sequence[str] | None
    timed_by_events: bool
    source: str
    held_out: npt.NDArray[np.bool_]


def measured_rows(
    table: Table, time_us: FloatArray, source: str, keys: Sequence[str] | None = None
) -> Iterator[Measured]:
    """A table's rows by GPU, family, dtype and variant (the op's own name), each with its split."""
    for rows in rows_of(table, source):
        names = np.array(rows.operators)
        for variant in dict.fromkeys(names.tolist()):
            yield _measured(rows, names == variant, variant, time_us, source, keys)


def _measured(
    rows: Rows, mine: npt.NDArray[np.bool_], variant: str, time_us: FloatArray, source: str,
    keys: Sequence[str] | None,
) -> Measured:  # fmt: skip
    batch = rows.batch
    dims = {key: column[mine] for key, column in batch.dims.items()}
    part = batch.take(np.nonzero(mine)[0])
    stacks = None if rows.stacks is None else [s.lower() for s, m in zip(rows.stacks, mine, strict=True) if m]
    apart = held_out(dims, keys or SHAPE_KEYS.get(batch.family, tuple(dims)))
    times = time_us[part.positions]
    return Measured(rows.gpu, part, variant, times, stacks, rows.timed_by_events, source, apart)


def event_tables(data: Path) -> Iterator[Measured]:
    """The fp32 tables that CUDA events timed: GEMM, vector, conv2d."""
    for name, source in EVENT_TABLES.items():
        table = read_table(data / "kernels" / f"{name}.parquet")
        yield from measured_rows(table, np.asarray(table["time_us"], dtype=np.float64), source)


def serving_gemm(gpu: str, dtype: str) -> Iterator[Measured]:
    """bf16 or fp8 GEMM of one GPU, all stacks; whole (n, k) pairs are held out."""
    label = {"bf16": "bfloat16", "fp8": "fp8"}[dtype]
    for path in _serving_files(gpu, "gemm", "gemm_perf.parquet"):
        table = read_table(path)
        kept = np.asarray(table["gemm_dtype"]) == label
        if kept.any():
            yield from _serving(table, kept, gpu, path, ("n", "k"))


def serving_attention(gpu: str) -> Iterator[Measured]:
    """bf16 prefill attention of one GPU: whole sequences, no window, no cached prefix."""
    for folder, file in (
        ("attention", "context_attention_perf.parquet"),
        ("encoder_attention", "encoder_attention_perf.parquet"),
    ):
        for path in _serving_files(gpu, folder, file):
            table = read_table(path)
            kept = np.asarray(table["attn_dtype"]) == "bfloat16"
            for key, test in (("kv_cache_dtype", "bfloat16"), ("step", 0)):
                if key in table:
                    kept &= np.asarray(table[key]) == test
            if "window_size" in table:
                kept &= np.asarray(table["window_size"]) <= 0
            yield from _serving(table, kept, gpu, path, None)


def _serving_files(gpu: str, folder: str, file: str) -> list[Path]:
    """The tables of one GPU, the newest version of each stack."""
    root = serving_folder() / SERVING_SYSTEMS[gpu] / folder
    return [path for stack in STACKS for path in sorted((root / stack).glob(f"*/{file}"), key=_version)[-1:]]


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


def _serving(
    table: Table, kept: npt.NDArray[np.bool_], gpu: str, path: Path, keys: Sequence[str] | None
) -> Iterator[Measured]:
    part = {key: np.asarray(column)[kept] for key, column in table.items() if key != "device"}
    part["gpu"] = np.full(int(kept.sum()), gpu, dtype=object)
    source = "aiconfigurator-core " + "/".join(path.parts[-4:-1])
    yield from measured_rows(part, np.asarray(part["latency"], dtype=np.float64) * 1e3, source, keys)


HELD_OUT_PERCENT = 10


def held_out(dims: Mapping[str, FloatArray], keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """True for the shapes that no fit may see: a tenth of them, the same on every GPU.

    ``keys`` names the sizes that make up a shape: all of them, or ("n", "k") where whole
    pairs are to be left out.
    """
    kept: npt.NDArray[np.bool_] = mixed_sizes(dims, keys) % np.uint64(100) < HELD_OUT_PERCENT
    return kept


def mixed_sizes(dims: Mapping[str, FloatArray], keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    """One number per shape that looks random and is always the same."""
    mixed = np.zeros(len(next(iter(dims.values()))), dtype=np.uint64)
    for key in keys:
        mixed = _mix(mixed ^ dims[key].astype(np.int64).view(np.uint64))
    return mixed


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit stirs every output bit."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
