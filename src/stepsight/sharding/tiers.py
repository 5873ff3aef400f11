"""Which tables live on the device, which in host memory or on a drive, and with how large a cache.

Each table starts on the device. While all together need more than the devices have, the table gives way that
loses least time per byte it frees: to host memory with a smaller and smaller cache on the device, in the end
without one. Times are those of its lookup and update alone, with the hit rate that its indices give. Where
host memory is limited, tables leave it for a drive in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.tables.lookup import TableLookup
from stepsight.tables.plan import part_bytes
from stepsight.tables.table import DEVICE, SSD, UVM, UVM_CACHING, Table

CACHE_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02)
"""Caches that are tried, as shares of a table's rows."""
FILLED = 0.9
"""How much of the devices' room tables may take together, so that whole tables can be packed."""


@dataclass(frozen=True, slots=True)
class _Tier:
    table: Table
    time_us: float
    device_bytes: float


def with_tiers(
    tables: Sequence[Table], gpu: GpuSpec, *, batch: int, optimizer: str, room_bytes: float,
    host_bytes: float = inf,
) -> tuple[Table, ...]:  # fmt: skip
    """The tables with the tier of each; unchanged where all fit into ``room_bytes`` on the devices.

    ``host_bytes`` is the memory of all hosts together.
    """
    options = [_frontier(table, gpu, batch, optimizer) for table in tables]
    at = [0] * len(tables)
    held = sum(tiers[0].device_bytes for tiers in options)
    queue = [_loss(tiers, 0, i) for i, tiers in enumerate(options) if len(tiers) > 1]
    heapq.heapify(queue)
    while held > FILLED * room_bytes and queue:
        _, i = heapq.heappop(queue)
        held += options[i][at[i] + 1].device_bytes - options[i][at[i]].device_bytes
        at[i] += 1
        if at[i] + 1 < len(options[i]):
            heapq.heappush(queue, _loss(options[i], at[i], i))
    if held > FILLED * room_bytes:
        raise InputError(
            "tables", f"take {held / 1e9:.1f} GB of {room_bytes / 1e9:.1f} GB on the devices at the least",
            "use more ranks",
        )  # fmt: skip
    placed = tuple(tiers[k].table for tiers, k in zip(options, at, strict=True))
    return _on_drives(placed, gpu, batch, optimizer, host_bytes)


def hosted_bytes(tables: Sequence[Table], optimizer: str) -> float:
    """Rows and optimizer state that lie in host memory, with or without a cache on the device."""
    return sum(t.weight_bytes + t.state_bytes(optimizer) for t in tables if t.placement in (UVM, UVM_CACHING))


def _on_drives(
    tables: Sequence[Table], gpu: GpuSpec, batch: int, optimizer: str, host_bytes: float
) -> tuple[Table, ...]:
    """Tables leave host memory for a drive until it holds the rest, those first that lose least time per
    byte; each has a cache there, the smallest one where it had none."""
    found = list(tables)
    held = hosted_bytes(tables, optimizer)
    if held <= host_bytes:
        return tuple(found)
    hosted = [i for i, t in enumerate(tables) if t.placement in (UVM, UVM_CACHING)]
    now = _times_us([tables[i] for i in hosted], gpu, batch, optimizer)
    shares = [t.cache_share if t.placement == UVM_CACHING else CACHE_SHARES[-1] for t in tables]
    moved = [replace(tables[i], placement=SSD, cache_share=shares[i]) for i in hosted]
    lost = (_times_us(moved, gpu, batch, optimizer) - now) / np.array([t.weight_bytes for t in moved])
    for k in np.argsort(lost, kind="stable"):
        if held <= host_bytes:
            break
        found[hosted[k]] = moved[k]
        held -= hosted_bytes([tables[hosted[k]]], optimizer)
    return tuple(found)


def _loss(tiers: Sequence[_Tier], at: int, table: int) -> tuple[float, int]:
    """Time lost per byte freed by the next tier."""
    now, after = tiers[at], tiers[at + 1]
    return (after.time_us - now.time_us) / (now.device_bytes - after.device_bytes), table


def _frontier(table: Table, gpu: GpuSpec, batch: int, optimizer: str) -> list[_Tier]:
    """The tiers of one table from the fastest, each taking less memory at the least loss per byte."""
    tried = [table]
    if table.placement == DEVICE:
        tried += [replace(table, placement=UVM_CACHING, cache_share=share) for share in CACHE_SHARES]
        tried.append(replace(table, placement=UVM))
    times = _times_us(tried, gpu, batch, optimizer)
    found = [
        _Tier(t, float(us), part_bytes(t, t.dim, t.rows, optimizer))
        for t, us in zip(tried, times, strict=True)
    ]
    kept = found[:1]
    while True:
        below = [tier for tier in found if tier.device_bytes < kept[-1].device_bytes]
        if not below:
            return kept
        last = kept[-1]
        kept.append(
            min(below, key=lambda t: (t.time_us - last.time_us) / (last.device_bytes - t.device_bytes))
        )


def _times_us(tables: Sequence[Table], gpu: GpuSpec, batch: int, optimizer: str) -> FloatArray:
    model = EmbeddingModel.for_gpu(gpu)
    lookups = [
        TableLookup(t.rows, t.dim, batch * t.features, t.pooling, t.indices, t.dtype, t.weighted,
                    t.bag_spread, t.placement, t.cache_share)
        for t in tables
    ]  # fmt: skip
    costs = model.table_costs(lookups, optimizer=optimizer, together=1)
    return np.asarray(model.forward_us(costs.forward) + model.backward_us(costs.backward))
