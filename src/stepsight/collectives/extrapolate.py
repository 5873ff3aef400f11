"""Carry a measured curve to another group, collective or machine, and say what that costs.

A curve is a latency floor plus the rest. The floor follows the number of steps; the rest
follows the bytes that cross the slowest link, so it is read at the message whose bytes per
link take as long (``stretched``). What was learned about doubling a group inside a node
(`RankTransfer`) is applied on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import RankTransfer
from stepsight.collectives.roofline import GroupShape, bus_factor, remote_share
from stepsight.constants import area
from stepsight.estimate import FloatArray

C = area("collectives")

LAST_OCTAVE = 34
"""Curves over nodes reach up to this power of two in bytes."""
RINGS = ("all_gather", "reduce_scatter")
"""NCCL sends them over nodes in n - 1 steps; it has no tree for them."""
GATHER_LIKE = ("all_gather", "reduce_scatter", "all_to_all", "all_to_allv")

KIND_SUMS = {
    "all_reduce": (("reduce_scatter", "all_gather"), ("all_gather", "all_gather"),
                   ("reduce_scatter", "reduce_scatter"), ("reduce", "broadcast")),
    "all_gather": (("reduce_scatter",), ("all_reduce",), ("broadcast",), ("all_to_all",)),
    "reduce_scatter": (("all_gather",), ("all_reduce",), ("reduce",), ("all_to_all",)),
    "all_to_all": (("send_recv",), ("all_gather",), ("reduce_scatter",), ("broadcast",), ("all_reduce",)),
    "broadcast": (("reduce",), ("all_gather",), ("all_reduce",)),
    "reduce": (("broadcast",), ("reduce_scatter",), ("all_reduce",)),
    "send_recv": (("all_to_all",), ("broadcast",), ("all_gather",), ("all_reduce",)),
}  # fmt: skip
"""What stands in for a collective that was not measured, best first; two names are added up."""


def wire_share(kind: str, shape: GroupShape) -> float:
    """Bytes over each rank's share of the slowest link, per byte of the collective."""
    return bus_factor(kind, shape.ranks) * remote_share(kind, shape)


def stretched(curve: Curve, stretch: float, floor_scale: float = 1.0) -> Curve:
    """The curve on which a message costs what ``stretch`` times its bytes cost on the given one.

    The latency floor is scaled by itself.
    """
    floor = float(curve.time_us(1.0))
    times = np.maximum(curve.times_us - floor, 0.0) + floor * floor_scale
    return Curve(curve.sizes / stretch, times, curve.measured_spread)


@lru_cache(maxsize=4096)
def to_kind(parts: tuple[tuple[str, Curve], ...], kind: str, shape: GroupShape) -> Curve:
    """The sum of the stand-ins, each read at the bytes per link that its part must move."""
    wanted = wire_share(kind, shape) / len(parts)
    moved = [stretched(curve, wanted / wire_share(name, shape)) for name, curve in parts]
    sizes = np.unique(np.concatenate([curve.sizes for curve in moved]))
    low, high = max(c.sizes[0] for c in moved), min(c.sizes[-1] for c in moved)
    sizes = sizes[(sizes >= low) & (sizes <= high)] if low <= high else sizes
    times = np.sum([curve.time_us(sizes) for curve in moved], axis=0)
    spread = max(curve.measured_spread for curve in moved)
    return Curve(sizes, np.maximum.accumulate(times), spread)


def to_ranks(curve: Curve, kind: str, ranks: int, wanted: int, transfer: RankTransfer) -> Curve:
    """A one-node curve of ``ranks`` as one of ``wanted`` ranks on the same links."""
    stretch = bus_factor(kind, wanted) / bus_factor(kind, ranks)
    if kind == "send_recv":
        return curve
    position = curve_position(curve, curve.sizes)
    ln_ratio = _ln_ratio(kind, ranks, wanted, position, transfer)
    times = np.maximum.accumulate(curve.times_us * np.exp(ln_ratio))
    return Curve(curve.sizes / stretch, times, curve.measured_spread)


def between_ranks(low: tuple[int, Curve], high: tuple[int, Curve], kind: str, wanted: int) -> Curve:
    """A group size between two measured ones: straight in log2(ranks), at equal bytes per link."""
    weight = math.log2(wanted / low[0]) / math.log2(high[0] / low[0])
    a = stretched(low[1], bus_factor(kind, wanted) / bus_factor(kind, low[0]))
    b = stretched(high[1], bus_factor(kind, wanted) / bus_factor(kind, high[0]))
    sizes = np.unique(np.concatenate([a.sizes, b.sizes]))
    inside = sizes[(sizes >= max(a.sizes[0], b.sizes[0])) & (sizes <= min(a.sizes[-1], b.sizes[-1]))]
    sizes = inside if len(inside) else sizes
    times = a.time_us(sizes) ** (1 - weight) * b.time_us(sizes) ** weight
    return Curve(sizes, np.maximum.accumulate(times), max(a.measured_spread, b.measured_spread))


def bound_by_wire(curve: Curve, kind: str, shape: GroupShape, gbps: float) -> Curve | None:
    """The part of a curve over nodes where its bytes take the NICs at least half of the time."""
    wire = curve.sizes * wire_share(kind, shape) / (gbps * 1e3)
    found = 2 * wire >= curve.times_us
    return Curve(curve.sizes[found], curve.times_us[found], curve.measured_spread) if found.any() else None


@dataclass(frozen=True, slots=True)
class OverNodes:
    """The way from a measured group over nodes to another one, and from its NICs to others."""

    kind: str
    shape: GroupShape
    gbps: float
    wanted: GroupShape
    wanted_gbps: float
    rdma: bool = True

    @property
    def _stretch(self) -> float:
        share = wire_share(self.kind, self.wanted) / wire_share(self.kind, self.shape)
        return share * self.gbps / self.wanted_gbps / self._steps

    @property
    def _steps(self) -> float:
        """A ring's steps over the measured one's: each takes as long as one of the same bytes did."""
        return (self.wanted.ranks - 1) / (self.shape.ranks - 1) if self.kind in RINGS else 1.0

    def range_bytes(self, curve: Curve) -> tuple[float, float]:
        """The sizes that the carried curve spans."""
        low, high = (size / self._stretch for size in curve.range_bytes)
        return low, high if math.ceil(math.log2(high)) >= LAST_OCTAVE else 2.0**LAST_OCTAVE

    def carried(self, curve: Curve) -> Curve:
        """The curve on the other group: by bytes per NIC and by steps, within what the NIC can do."""
        kind, wanted = self.kind, self.wanted
        if self.kind in RINGS:
            moved = Curve(curve.sizes / self._stretch, curve.times_us * self._steps, curve.measured_spread)
        else:
            floor_scale = _floor_over_nodes(kind, wanted) / _floor_over_nodes(kind, self.shape)
            moved = stretched(curve, self._stretch, floor_scale)
        octaves = np.exp2(np.arange(np.ceil(np.log2(moved.sizes[-1])) + 1, LAST_OCTAVE + 1.0))
        sizes = np.concatenate([moved.sizes, octaves])  # beyond them the NIC's rate says more than a slope
        times = moved.time_us(sizes)
        wire = sizes * wire_share(kind, wanted) / (self.wanted_gbps * 1e3)
        if self.rdma:
            ring = 2.0 * C.RING_CHUNK_BYTES * wanted.ranks
            started = float(moved.time_us(ring if kind in RINGS else C.STARTED_BYTES))
            pair = kind == "send_recv" and wanted.ranks == 2
            reached = C.PAIR_NIC_EFFICIENCY if pair else C.LEAST_NIC_EFFICIENCY
            times = np.minimum(times, np.maximum(started, times[0]) + wire / reached)
        # Two nodes may exchange in one tree step what a ring over more nodes must send in full.
        least = wire if wanted.nodes > 2 else wire / C.TWO_NODE_GAIN
        times = np.maximum.accumulate(np.maximum(times, least))
        return Curve(sizes, times, moved.measured_spread)


def _ln_ratio(kind: str, ranks: int, wanted: int, position: FloatArray, transfer: RankTransfer) -> FloatArray:
    doublings = math.log2(wanted / ranks)
    total = np.zeros_like(position)
    at, left = float(min(ranks, wanted)), abs(doublings)
    while left > 1e-9:
        step = min(1.0, left)
        total += step * transfer.doubling(kind, round(at), position)
        at *= 2.0
        left -= step
    return total if doublings > 0 else -total


def _floor_over_nodes(kind: str, shape: GroupShape) -> float:
    if kind in GATHER_LIKE:
        return float(shape.ranks)
    if kind == "all_reduce":
        return math.log2(shape.nodes) + C.TREE_LATENCY_OFFSET
    return 1.0


def curve_position(curve: Curve, bytes: FloatArray) -> FloatArray:
    """log2 of the message's bandwidth time over the curve's latency floor."""
    floor = float(curve.time_us(1.0))
    us_per_byte = float(curve.times_us[-1] / curve.sizes[-1])
    return np.asarray(np.log2(np.maximum(bytes, 1.0) * us_per_byte / floor), dtype=np.float64)
