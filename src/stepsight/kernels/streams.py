"""Kernels that stream memory on a GPU: their costs (`stream_costs`), its figures, what was measured on it.

Traffic that stays in a large L2 cache moves faster. The share of bandwidth is scaled by how much of it
a GPU gave to plain element-wise ops where that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, IntArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, put_together
from stepsight.kernels.learned.model import EventPath
from stepsight.kernels.learned.residual import Residual
from stepsight.kernels.machine import Machine
from stepsight.kernels.roofline import PCIE_FAMILIES, bandwidth_gbps
from stepsight.kernels.stream_costs import (
    AMD_SHARES,
    AMD_START_US,
    STREAMS,
    VARIANTS,
    Stream,
    meet,
    passes_us,
)
from stepsight.kernels.stream_memory import board_share, cache_speed, reread_bytes
from stepsight.program.variants import PAGEABLE

C = area("kernels")
WARP_COLUMNS = C.whole("WARP_COLUMNS")

FILE = "streams.json"
HALF = frozenset({"fp16", "bf16"})
HALF_VARIANT = "half"
"""The variant under which a family's half-precision correction is filed."""

OLD_GDDR = frozenset({"maxwell", "pascal"})


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


def measured_stream(streams: Sequence[Streamed], spec: GpuSpec) -> tuple[Streamed | None, bool]:
    """The measured streams to scale a chip's by, and whether they are its own.

    Older boards with GDDR memory that nobody measured go by a measured one (P4 by T4: 0.75 and 0.74 of their
    bandwidth); newer ones reach what boards with HBM do (RTX 3090, Titan RTX and 2080 Ti).
    """
    mine = Machine.of(spec, "fp32")
    for stream in streams:  # a board whose multiprocessors a user changes keeps its memory
        if stream.machine.same_chip(mine) or stream.machine.name == mine.name:
            return stream, True
    old = mine.gddr and mine.architecture in OLD_GDDR
    return next((s for s in streams if s.machine.gddr and old), None), False


def by_stream(batch: Batch) -> list[tuple[str, IntArray]]:
    """Rows of each variant with costs of its own, then ("") of all others."""
    return batch.by_variant(lambda variant: (batch.family, variant) in VARIANTS)


def stream_us(
    batch: Batch, spec: GpuSpec, fitted: Streamed | None, variant: str = "", *, rereads: bool = True
) -> tuple[FloatArray, float]:
    """Times and spread of kernels of one variant with costs of its own; ``fitted`` scales the share.

    ``rereads``: rows that do not stay in a cache are read again by every pass over them.
    """
    stream = VARIANTS.get((batch.family, variant), STREAMS[batch.family])
    traffic = batch.bytes * stream.traffic
    bandwidth = bandwidth_gbps(batch, spec) * 1e3
    share = np.full(len(batch), stream.share)
    if batch.family in PCIE_FAMILIES:
        pageable = batch.where(lambda kind: kind.variant == PAGEABLE)  # the host copies it into pinned memory
        share = np.where(pageable, np.minimum(share, C.PAGEABLE_GBPS / spec.pcie_gbps), share)
    elif fitted is None:
        share = share * board_share(spec)
    else:
        plain = batch.family == "elementwise" and not variant
        share = _shares(batch, fitted) if plain else share * (fitted.usual_share / C.USUAL_SHARE)
    if batch.family == "layer_norm" and spec.architecture not in OLD_GDDR and Machine.of(spec, "fp32").gddr:
        share = share * C.GDDR_NORMS
    if spec.vendor == "amd":
        share = share * _on_amd(batch)
    rows = batch.dims.get("rows")
    extra = stream.per_row_us * rows if rows is not None else 0.0
    if batch.family == "reduce":  # values are added up in turns that wait for their loads
        extra = C.REDUCE_TURN_US * np.minimum(batch.dims["cols"] / C.REDUCE_ROWS, C.REDUCE_TURNS)
    if batch.family == "sort":
        extra = passes_us(batch, STREAMS["sort_pass"].start_us)
    traffic = traffic + reread_bytes(batch, spec) if rereads else traffic
    memory = traffic / (bandwidth * share * cache_speed(batch, spec, traffic))
    start_us = stream.start_us + (AMD_START_US if spec.vendor == "amd" else 0.0)
    busy = meet(memory, _instructions_us(batch, spec, stream))
    return start_us + extra + busy, stream.spread


def _on_amd(batch: Batch) -> FloatArray:
    """What AMD's GPUs reach of a family's share."""
    if batch.family == "softmax":
        return np.where(batch.dims["cols"] > WARP_COLUMNS, C.AMD_LONG_SOFTMAX, 1.0)
    return np.full(len(batch), AMD_SHARES.get(batch.family, 1.0))


def _instructions_us(batch: Batch, spec: GpuSpec, stream: Stream) -> FloatArray:
    """What issuing the instructions takes; zero where they never bound the kernel."""
    d = batch.dims
    bound = stream.rate > 0 and (batch.dtype in HALF or not stream.half_only)
    rate = np.full(len(batch), stream.rate if bound else np.inf)
    if batch.family == "softmax":
        plain_half = batch.dtype in HALF and stream is STREAMS["softmax"]
        rate = np.where(d["cols"] > WARP_COLUMNS, rate, C.WARP_HALF_RATE if plain_half else np.inf)
    if "indexed" in d:
        rate = np.where(d["indexed"] > 0, np.minimum(rate, C.INDEXED_RATE), rate)
    elements = (
        d["elements"] if "elements" in d else d["rows"] * d["cols"] if "cols" in d else np.zeros(len(batch))
    )
    return np.asarray(elements / (rate * spec.sms * spec.clock_mhz))


def stream_estimates(batch: Batch, spec: GpuSpec, fitted: Streamed | None, exact: bool) -> Estimates:
    """`stream_us` with its source: learned where element-wise ops of this chip were measured."""
    source = Source.LEARNED if exact else Source.TRANSFERRED
    parts = []
    for variant, rows in by_stream(batch):
        part = batch if len(rows) == len(batch) else batch.take(rows)
        time_us, spread = stream_us(part, spec, fitted, variant)
        if not exact:
            spread = float(np.hypot(spread, C.UNMEASURED_SPREAD))
        parts.append((rows, Estimates.uniform(time_us, source, spread)))
    return put_together(parts, len(batch))


def corrected_stream(batch: Batch, spec: GpuSpec, residual: Residual, variant: str) -> Estimates:
    """Half-precision kernels: the costs by first principles, corrected by what was measured of the family.

    From another chip only how the correction varies with the shape is taken over: the level is its own.
    """
    base, _ = stream_us(batch, spec, None, variant, rereads=False)
    level = 1.0 if residual.same_chip(spec) else float(np.exp(-residual.trees.bias))
    return residual.corrected(level * base, stream_columns(batch, spec), spec, C.UNMEASURED_SPREAD)


def _shares(batch: Batch, fitted: Streamed) -> FloatArray:
    usual = fitted.usual_share
    distinct = {kind: fitted.share.get(kind.variant, usual) for kind in set(batch.kinds)}
    if len(set(distinct.values())) <= 1:
        return np.full(len(batch), next(iter(distinct.values()), usual))
    return np.array([distinct[kind] for kind in batch.kinds])


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


def stream_columns(batch: Batch, spec: GpuSpec) -> dict[str, FloatArray]:
    """Named columns, relative to the GPU, so that one GPU's correction can be asked about another."""
    d = batch.dims
    named = {"cache": np.log(np.maximum(batch.bytes, 1.0) / (spec.l2_mb * 1e6))}
    if "rows" in d and "cols" in d:
        rows, cols = np.maximum(d["rows"], 1.0), np.maximum(d["cols"], 1.0)
        named |= {
            "cols": np.log(cols),
            "row_waves": np.log(rows / spec.sms),
            "power": np.ceil(np.log2(cols)),
            "waste": np.ceil(np.log2(cols)) - np.log2(cols),
            "multiple": _multiple(cols),
        }
        for step in (256, 1024, 2048):
            named[f"waste_{step}"] = np.log(np.ceil(cols / step) * step / cols)
    else:
        elements = np.maximum(d["elements"], 1.0)
        named["waves"] = np.log(elements / (spec.sms * 1024))
    return named


def _multiple(size: FloatArray) -> FloatArray:
    """log2 of the largest power of two up to 4096 that divides the size."""
    whole = np.maximum(size, 1.0).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, 4096).astype(np.float64)))
