"""The price list of one collective on one group: the nearest measured curve at every size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepsight.collectives.candidates import CurveCandidate, candidates
from stepsight.collectives.curve import Curve
from stepsight.collectives.extrapolate import RINGS, wire_share
from stepsight.collectives.measured import MeasuredSystem, RankTransfer
from stepsight.collectives.roofline import GroupShape, roofline
from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, IntArray, Source
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import PlatformSpec

C = area("collectives")
LATENCY_BYTES = C.whole("LATENCY_BYTES")
RATES_GBPS = C.numbers("RATES_GBPS")
STACK_SPREAD = C.curve("STACK_SPREAD")


ROOFLINE_NOTE = "no measured curve of this kind of link: data-sheet bandwidth and latency"
LEAST_LEFT = 0.5
"""Of a price, what a link that is twice as fast leaves at least."""
SIZE_NOTE = "extrapolated beyond the measured sizes of {low} – {high} bytes"


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Times over sizes, and for each knot the candidate (a piece) that it came from."""

    curve: Curve
    pieces: tuple[CurveCandidate, ...]
    piece_of_knot: IntArray
    _columns: _PieceColumns

    @classmethod
    def of(cls, curve: Curve, pieces: tuple[CurveCandidate, ...], piece_of_knot: IntArray) -> Pricing:
        return cls(curve, pieces, piece_of_knot, _PieceColumns.of(curve, pieces))

    def time_us(self, bytes: npt.ArrayLike) -> FloatArray:
        return self.curve.time_us(bytes)

    def estimate(self, bytes: FloatArray) -> Estimates:
        """Times with the source, spread and note of the piece that each size lies on."""
        columns = self._columns
        piece = self.piece_of_knot[np.searchsorted(columns.between_knots, bytes)]
        stack = columns.of_others[piece] * np.interp(np.log2(np.maximum(bytes, 1.0)), *STACK_SPREAD)
        spread = np.sqrt(self.curve.spread(bytes) ** 2 + columns.spread[piece] ** 2 + stack**2)
        low, high = self.curve.range_bytes
        outside = (bytes > high) | ((bytes < low) & (low > LATENCY_BYTES))
        size_note = SIZE_NOTE.format(low=f"{low:,.0f}", high=f"{high:,.0f}")
        notes: dict[int, str] = {}
        for at, used in enumerate(self.pieces):
            for here, also in ((~outside, ""), (outside, size_note)):
                note = "; ".join(part for part in (used.note, also) if part)
                if note:
                    notes.update(dict.fromkeys(np.flatnonzero(here & (piece == at)).tolist(), note))
        return Estimates(self.curve.time_us(bytes), columns.source[piece], spread, notes)


@dataclass(frozen=True, slots=True, eq=False)
class _PieceColumns:
    """What `Pricing` looks up per size, as arrays over its pieces (and between its knots)."""

    between_knots: FloatArray
    source: IntArray
    spread: FloatArray
    of_others: FloatArray

    @classmethod
    def of(cls, curve: Curve, pieces: Sequence[CurveCandidate]) -> _PieceColumns:
        return cls(
            np.sqrt(curve.sizes[1:] * curve.sizes[:-1]),
            np.array([int(piece.source) for piece in pieces], dtype=np.int64),
            np.array([float(np.hypot(piece.curve.measured_spread, piece.spread)) for piece in pieces]),
            np.array([0.0 if piece.own else 1.0 for piece in pieces]),
        )


def price(
    kind: str,
    shape: GroupShape,
    platform: PlatformSpec,
    systems: Sequence[MeasuredSystem],
    transfer: RankTransfer,
) -> Pricing:
    """The nearest candidate's curve, filled out where it was not measured by the next nearest."""
    found = candidates(kind, shape, platform, systems, transfer)
    found = [candidate for candidate in found if candidate.distance <= found[0].distance + C.FARTHEST]
    if not found:
        found = [_data_sheet(kind, shape, platform)]
    sizes, times, owner = _knots(found)
    used = np.unique(owner)
    # The curve's own spread lies with its pieces; beyond its range it grows as any curve's does.
    return Pricing.of(Curve(sizes, times, 0.0), tuple(found[i] for i in used), np.searchsorted(used, owner))


def _knots(found: Sequence[CurveCandidate]) -> tuple[FloatArray, FloatArray, IntArray]:
    """The nearest curve's knots, then those of farther ones where no nearer one was measured."""
    first = found[0].curve
    sizes, times, owner = first.sizes, first.times_us, np.zeros(len(first), dtype=np.int64)
    covered = [first.range_bytes]
    for i, candidate in enumerate(found[1:], start=1):
        if any(_within(candidate.range_bytes, known) for known in covered):
            continue
        curve = candidate.curve
        fresh = np.ones(len(curve), dtype=bool)
        for low, high in covered:
            fresh &= (curve.sizes <= low / C.FILL_BELOW) | (curve.sizes >= high * C.FILL_ABOVE)
        if not fresh.any():
            continue
        added = curve.sizes[fresh]
        fitted = _fitted_in(Curve(sizes, times, 0.0), curve, added)
        order = np.argsort(np.concatenate([sizes, added]), kind="stable")
        sizes = np.concatenate([sizes, added])[order]
        times = np.concatenate([times, fitted])[order]
        owner = np.concatenate([owner, np.full(len(added), i)])[order]
        covered.append(curve.range_bytes)
    return sizes, times, owner


def _within(range_bytes: tuple[float, float], known: tuple[float, float]) -> bool:
    """Whether a curve has no size that lies beyond what is known."""
    return range_bytes[0] > known[0] / C.FILL_BELOW and range_bytes[1] < known[1] * C.FILL_ABOVE


def _fitted_in(nearer: Curve, farther: Curve, sizes: FloatArray) -> FloatArray:
    """A farther curve's times that meet the nearer one at its upper end and never cross it: a machine stays
    as much slower or faster as it is there, for that is its bandwidth."""
    low, high = nearer.range_bytes
    inside = nearer.sizes[np.clip(np.searchsorted(nearer.sizes, sizes), 0, len(nearer) - 1)]
    seam = np.where(sizes < low, low, np.where(sizes > high, high * C.FILL_ABOVE, inside))
    step = nearer.time_us(seam) / farther.time_us(seam)
    times = farther.time_us(sizes) * np.where(sizes >= seam, step, 1.0)
    at = np.searchsorted(nearer.sizes, sizes)
    floor = np.concatenate([[0.0], nearer.times_us])[at]
    ceiling = np.concatenate([nearer.times_us, [np.inf]])[at]
    fitted = np.minimum(np.maximum.accumulate(np.maximum(times, floor)), ceiling)
    return np.asarray(fitted, dtype=np.float64)


def _data_sheet(kind: str, shape: GroupShape, platform: PlatformSpec) -> CurveCandidate:
    line = roofline(kind, shape, platform)
    sizes = np.exp2(np.arange(3.0, 35.0))
    curve = Curve(sizes, line.time_us(sizes), 0.0)
    return CurveCandidate.of(curve, np.inf, Source.ROOFLINE, C.ROOFLINE_SPREAD, ROOFLINE_NOTE)


def slower(over: Pricing, inside: Pricing, share: float) -> Pricing:
    """A group over nodes takes at least what its links inside a node take for ``share`` of the bytes, and for
    the chunks that fill the pipe between them and the NICs.

    Curves over nodes are measured on machines with NVLink: PCIe nodes are bound by PCIe.
    """
    sizes = np.unique(np.concatenate([over.curve.sizes, inside.curve.sizes / share]))
    times = over.time_us(sizes)
    least = inside.time_us(share * sizes) + times / C.CHUNKS_IN_FLIGHT
    if not (least > times).any():
        return over
    there, here = _with_times(over, sizes, times), _with_times(inside, sizes, least)
    return Pricing.of(
        Curve(sizes, np.maximum(times, least), 0.0),
        (*over.pieces, *inside.pieces),
        np.where(least > times, len(over.pieces) + here.piece_of_knot, there.piece_of_knot),
    )


def price_monotone(
    kind: str,
    shape: GroupShape,
    platform: PlatformSpec,
    systems: Sequence[MeasuredSystem],
    transfer: RankTransfer,
) -> Pricing:
    """The price list of a group, monotone in the rate of the link that bounds it."""
    nic, link = platform.nic, platform.link

    def over_nodes(rate: float) -> Pricing:
        faster = None if nic is None else replace(nic, gbps=rate)
        return price(kind, shape, replace(platform, nic=faster), systems, transfer)

    def in_node(rate: float) -> Pricing:
        return price(kind, shape, replace(platform, link=replace(link, gbps=rate)), systems, transfer)

    per_byte = wire_share(kind, shape) / 1e3
    if shape.inside_a_node:
        entry = find_gpu(platform.gpu.name)
        usual = entry.link.gbps if entry else 0.0
        if usual <= 0 or link.gbps == usual:
            return in_node(link.gbps)
        return _at_most(tuple(usual * 2.0**k for k in range(-4, 8)), link.gbps, in_node, per_byte * 0.5)
    if nic is None or nic.gbps <= 0:
        return price(kind, shape, platform, systems, transfer)
    gain = C.TWO_NODE_GAIN if shape.nodes == 2 else 1.0
    return _at_most(RATES_GBPS, nic.gbps, over_nodes, per_byte / gain)


def by_nodes(
    kind: str, shape: GroupShape, found: Pricing, priced: Callable[[GroupShape], Pricing]
) -> Pricing:
    """The price over more than two nodes, next to those of half as many (``priced``).

    From one power of two nodes to the next, a message of the same bytes per rank takes no less and at most
    as many times longer as the ranks are more, whichever machine is nearest; in between it is interpolated.
    A group that was measured itself keeps its times.
    """
    whole = shape.ranks == shape.nodes * shape.per_node
    if shape.nodes <= 2 or not whole or any(piece.source is Source.MEASURED for piece in found.pieces):
        return found
    below = 1 << (shape.nodes - 1).bit_length() - 1
    fewer = priced(_over(shape, below))
    if shape.nodes < 2 * below:
        return _between(kind, shape, fewer, priced(_over(shape, 2 * below)), below)
    more = shape.ranks / (shape.ranks // 2) if kind in RINGS else 1.0
    sizes = np.unique(np.concatenate([found.curve.sizes, fewer.curve.sizes * more]))
    least = fewer.time_us(sizes / more)
    most = least * (shape.ranks - 1) / (shape.ranks / 2 - 1)
    return _with_times(found, sizes, np.clip(found.time_us(sizes), least, most))


def _between(kind: str, shape: GroupShape, fewer: Pricing, more: Pricing, below: int) -> Pricing:
    """Straight in ln(time) over ln(nodes), at the same bytes per rank."""
    ratio = shape.nodes / below
    weight = math.log2(ratio)
    low, high = (ratio, ratio / 2) if kind in RINGS else (1.0, 1.0)
    sizes = np.unique(np.concatenate([fewer.curve.sizes * low, more.curve.sizes * high]))
    times = fewer.time_us(sizes / low) ** (1 - weight) * more.time_us(sizes / high) ** weight
    return _with_times(more if weight > 0.5 else fewer, sizes, np.maximum.accumulate(times))


def _over(shape: GroupShape, nodes: int) -> GroupShape:
    return GroupShape(nodes * shape.per_node, nodes, shape.per_node)


def _at_most(
    rates: tuple[float, ...], wanted: float, at: Callable[[float], Pricing], per_byte: float
) -> Pricing:
    """The price at a rate, interpolated between the listed ones.

    A faster link saves at least what its bytes (``per_byte`` µs at 1 GB/s) spend less on the wire, whichever
    machine is nearest.
    """
    rate = min(max(wanted, rates[0]), rates[-1])
    near = [r for r in rates if abs(math.log(r / rate)) <= C.LISTED_RATE]
    top = near[0] if near else min(r for r in rates if r > rate)
    listed = [r for r in rates if r <= top]
    lists = [at(r) for r in listed]
    sizes = np.unique(np.concatenate([one.curve.sizes for one in lists]))
    best = [lists[0].curve.time_us(sizes)]
    for one, slower, faster in zip(lists[1:], listed, listed[1:], strict=False):
        saved = per_byte * sizes * (1 / slower - 1 / faster)
        best.append(np.minimum(one.curve.time_us(sizes), np.maximum(best[-1] - saved, LEAST_LEFT * best[-1])))
    times = best[-1]
    if not near:
        weight = math.log(rate / listed[-2]) / math.log(top / listed[-2])
        times = np.exp((1 - weight) * np.log(best[-2]) + weight * np.log(times))
    times = times * max(1.0, rate / wanted)  # slower than any listed rate
    return _with_times(lists[-1], sizes, np.maximum.accumulate(times))


def _with_times(priced: Pricing, sizes: FloatArray, times: FloatArray) -> Pricing:
    """The same sources with other times."""
    at = np.clip(np.searchsorted(priced.curve.sizes, sizes), 0, len(priced.curve) - 1)
    return Pricing.of(
        Curve(sizes, times, priced.curve.measured_spread), priced.pieces, priced.piece_of_knot[at]
    )
