"""Kernels that stream memory: a start, then bytes over the bandwidth the family reaches.

``time = start + bytes / (share × memory bandwidth)``; traffic that stays in a large L2 cache
moves faster. Two constants describe each family; the share is scaled by how much of its
bandwidth a GPU gave to plain element-wise ops where that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import EventPath
from stepsight.kernels.machine import Machine
from stepsight.kernels.roofline import bandwidth_gbps


@dataclass(frozen=True, slots=True)
class Stream:
    """What a family costs to start, and its share of memory bandwidth when large."""

    start_us: float
    share: float
    spread: float
    per_row_us: float = 0.0


# Medians over profiler traces (trace_kernels.parquet: V100, A100, H100) unless said otherwise:
# start from kernels under 0.1 MB, share from kernels above 10 MB.
STREAMS: Mapping[str, Stream] = {
    "elementwise": Stream(2.4, 0.87, 0.12),  # slope of the vector tables, V100 0.91 and A100 0.88
    "fill": Stream(1.8, 0.90, 0.15),
    "dropout": Stream(2.5, 0.76, 0.15),  # transformer_ops.parquet: 9.7 GB in 3.25 ms on GH200
    "softmax_backward": Stream(2.5, 0.70, 0.2),  # first principles: forward's share, half as many passes
    "layer_norm_backward": Stream(4.0, 0.55, 0.25),  # the input's gradient: A100 0.47–0.69
    "batch_norm": Stream(5.0, 0.80, 0.15),
    "batch_norm_backward": Stream(6.0, 0.75, 0.15),
    "reduce": Stream(4.5, 0.60, 0.25),  # 0.41 (V100) to 0.78 (H100)
    "pool": Stream(2.5, 0.80, 0.2),
    "gather": Stream(4.0, 0.60, 0.3),
    "scatter": Stream(6.0, 0.22, 0.4),  # index_put: 0.16 (B200) to 0.20 (A100)
    "concat": Stream(3.5, 0.68, 0.2),  # V100 DLRM lists: 9.4 MB in 19.4 µs, 56.6 MB in 92.6 µs
    "transpose": Stream(2.5, 0.55, 0.25),  # strided copies: A100 0.45–0.58, H100 0.41–0.60
    "sort": Stream(9.0, 0.35, 0.4),  # one-tile radix sort of the V100 DLRM lists takes 10 µs
    "copy_h2d": Stream(2.0, 0.79, 0.1),  # V100 DLRM lists, pinned: 4.2 MB in 339 µs over 15.75 GB/s
    "copy_d2h": Stream(1.5, 0.79, 0.2),  # as host to device
    "copy_d2d": Stream(2.0, 0.85, 0.15),
    "optimizer": Stream(3.0, 0.80, 0.2),  # first principles: multi-tensor kernels stream as element-wise ones
    "nll_loss": Stream(3.0, 0.5, 0.3, per_row_us=0.02),  # one block: H100 512 rows in 13 µs
    "nll_loss_backward": Stream(2.0, 0.80, 0.3, per_row_us=0.004),  # H100 512 rows in 5 µs
}

VARIANTS: Mapping[tuple[str, str], Stream] = {
    # Accumulating index_put on strided columns, V100 DLRM lists: 74 k elements in 41 µs, 719 k in 319 µs.
    ("scatter", "index_put"): Stream(6.0, 0.04, 0.4),
}
"""Kernels of a family that behave unlike the rest of it."""

USUAL_SHARE = 0.87
"""The element-wise share that the table above was read on (V100, A100, H100)."""

UNMEASURED_SPREAD = 0.1
"""Added where the chip's own element-wise bandwidth was not measured: shares range from 0.74 to 0.91."""

IN_CACHE = 0.6
"""Traffic under this share of L2 mostly hits it: the producer has just written it."""
CACHE_SPEEDUP = 1.3
"""A100 and H100 kernels of 10–30 MB reach 1.2–1.4 times the bandwidth of large ones (traces)."""
LARGE_L2_MB = 24.0
"""Only since A100 is L2 large enough for the speed-up to show; V100 (6 MB) shows none."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Element-wise ops as measured on one GPU: share of bandwidth and event path by op."""

    machine: Machine
    share: Mapping[str, float]
    path: Mapping[str, EventPath]
    spread: float
    source: str
    rows: int
    date: str
    gmae: float
    mape: float
    note: str = field(default="")

    @property
    def usual_share(self) -> float:
        return float(np.median(list(self.share.values())))

    def path_of(self, op: str) -> EventPath:
        """The event path of an op; the median one for an op that was not measured."""
        if op in self.path:
            return self.path[op]
        return EventPath(added_us=float(np.median([path.added_us for path in self.path.values()])))


def measured_stream(streams: Sequence[Streamed], spec: GpuSpec) -> tuple[Streamed | None, bool]:
    """The measured streams to scale a chip's by, and whether they are its own.

    A board with GDDR memory that nobody measured goes by another one; one with HBM by none.
    """
    mine = Machine.of(spec, "fp32")
    for stream in streams:
        if stream.machine.same_chip(mine):
            return stream, True
    return next((s for s in streams if s.machine.gddr and mine.gddr), None), False


def stream_us(batch: Batch, spec: GpuSpec, fitted: Streamed | None) -> tuple[FloatArray, float]:
    """Times and spread of a streaming family; ``fitted`` scales the share where measured."""
    stream = STREAMS[batch.family]
    names = set(batch.names)
    if len(names) == 1:
        stream = VARIANTS.get((batch.family, names.pop()), stream)
    traffic = batch.bytes
    bandwidth = bandwidth_gbps(batch, spec) * 1e3
    share = np.full(len(batch), stream.share)
    if fitted is not None and batch.family not in ("copy_h2d", "copy_d2h"):
        share = (
            _shares(batch, fitted)
            if batch.family == "elementwise"
            else share * (fitted.usual_share / USUAL_SHARE)
        )
    speed = np.ones(len(batch))
    if spec.l2_mb >= LARGE_L2_MB:
        fill = traffic / (IN_CACHE * spec.l2_mb * 1e6)
        speed = 1 + (CACHE_SPEEDUP - 1) * np.clip(2 - fill, 0, 1)
    rows = batch.dims.get("rows")
    extra = stream.per_row_us * rows if rows is not None else 0.0
    time_us = stream.start_us + extra + traffic / (bandwidth * share * speed)
    return time_us, stream.spread


def stream_estimates(batch: Batch, spec: GpuSpec, fitted: Streamed | None, exact: bool) -> Estimates:
    """`stream_us` with its source: learned where element-wise ops of this chip were measured."""
    time_us, spread = stream_us(batch, spec, fitted)
    if exact:
        return Estimates.uniform(time_us, Source.LEARNED, spread)
    return Estimates.uniform(time_us, Source.TRANSFERRED, float(np.hypot(spread, UNMEASURED_SPREAD)))


def _shares(batch: Batch, fitted: Streamed) -> FloatArray:
    usual = fitted.usual_share
    distinct = {name: fitted.share.get(name, usual) for name in set(batch.names)}
    if len(set(distinct.values())) <= 1:
        return np.full(len(batch), next(iter(distinct.values()), usual))
    return np.array([distinct[name] for name in batch.names])


def save_streams(path: Path, streams: Sequence[Streamed]) -> None:
    """Write the measured streams as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [asdict(stream) for stream in streams]
    path.write_text(json.dumps({"format": 1, "streams": records}, indent=1, sort_keys=True) + "\n")


def load_streams(path: Path) -> tuple[Streamed, ...]:
    """The measured streams of one JSON file; none where there is no such file."""
    if not path.is_file():
        return ()
    return tuple(_streamed(record) for record in json.loads(path.read_text())["streams"])


@lru_cache(maxsize=8)
def cached_streams(path: Path) -> tuple[Streamed, ...]:
    """`load_streams`, read once."""
    return load_streams(path)


def _streamed(record: dict[str, Any]) -> Streamed:
    fields = dict(record)
    fields["machine"] = Machine(**fields["machine"])
    fields["path"] = {op: EventPath(**path) for op, path in fields["path"].items()}
    return Streamed(**fields)
