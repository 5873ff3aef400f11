"""The price list of one collective on one group: the nearest measured curve at every size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsight.collectives.candidates import Candidate, candidates
from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import MeasuredSystem, RankTransfer
from stepsight.collectives.roofline import roofline
from stepsight.collectives.topology import GroupShape
from stepsight.estimate import Estimates, FloatArray, IntArray, Source
from stepsight.platform.spec import PlatformSpec

ROOFLINE_SPREAD = 0.5
"""Data-sheet bandwidth with a stated efficiency is off by about this much (docs/accuracy.md)."""
ROOFLINE_NOTE = "no measured curve of this kind of link: data-sheet bandwidth and latency"
SIZE_NOTE = "extrapolated in size beyond {low} – {high} bytes"
GAP_OCTAVES = 1.0
"""A farther curve fills in only where nearer ones were measured no closer than this."""
STACK_SPREAD = ((17.0, 23.0), (0.30, 0.02))
"""Between software stacks on the same machine, over log2(bytes): the median over curves with
several sources is 0.30 below 8 MiB and 0.02 above."""
FARTHEST = 6.0
"""Curves farther than the nearest by more than this do not fill its gaps; it is extrapolated."""


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Times over sizes, and for each knot the candidate (a piece) that it came from."""

    curve: Curve
    pieces: tuple[Candidate, ...]
    piece_of_knot: IntArray

    def time_us(self, bytes: npt.ArrayLike) -> FloatArray:
        return self.curve.time_us(bytes)

    def estimate(self, bytes: FloatArray) -> Estimates:
        """Times with the source, spread and note of the piece that each size lies on."""
        between = np.sqrt(self.curve.sizes[1:] * self.curve.sizes[:-1])
        piece = self.piece_of_knot[np.searchsorted(between, bytes)]
        own = np.array([p.curve.measured_spread for p in self.pieces])
        carried = np.array([p.spread for p in self.pieces])
        source = np.array([int(p.source) for p in self.pieces], dtype=np.int64)[piece]
        others = ~np.array([p.own for p in self.pieces])[piece]
        stack = others * np.interp(np.log2(np.maximum(bytes, 1.0)), *STACK_SPREAD)
        beyond = np.hypot(np.hypot(self.curve.spread(bytes), own[piece]), stack)
        low, high = self.curve.range_bytes
        outside = (bytes > high) | (bytes < low)
        size_note = SIZE_NOTE.format(low=f"{low:,.0f}", high=f"{high:,.0f}")
        notes: dict[int, str] = {}
        for i, (at, is_outside) in enumerate(zip(piece.tolist(), outside.tolist(), strict=True)):
            parts = [p for p in (self.pieces[at].note, size_note if is_outside else "") if p]
            if parts:
                notes[i] = "; ".join(parts)
        return Estimates(self.curve.time_us(bytes), source, np.hypot(beyond, carried[piece]), notes)


def price(
    kind: str,
    shape: GroupShape,
    platform: PlatformSpec,
    systems: Sequence[MeasuredSystem],
    transfer: RankTransfer,
) -> Pricing:
    """The nearest candidate's curve, filled out where it was not measured by the next nearest."""
    found = candidates(kind, shape, platform, systems, transfer)
    found = [candidate for candidate in found if candidate.distance <= found[0].distance + FARTHEST]
    if not found:
        found = [_data_sheet(kind, shape, platform)]
    sizes, times, owner = _knots(found)
    order = np.argsort(sizes, kind="stable")
    envelope = np.minimum.accumulate(times[order][::-1])[::-1]
    used = np.unique(owner)
    renumbered = np.searchsorted(used, owner[order])
    # The curve's own spread lies with its pieces; beyond its range it grows as any curve's does.
    return Pricing(Curve(sizes[order], envelope, 0.0), tuple(found[i] for i in used), renumbered)


def _knots(found: Sequence[Candidate]) -> tuple[FloatArray, FloatArray, IntArray]:
    sizes: list[float] = []
    times: list[float] = []
    owner: list[int] = []
    covered: list[tuple[float, float]] = []
    margin = 2.0**GAP_OCTAVES
    for i, candidate in enumerate(found):
        curve = candidate.curve
        fresh = [
            k for k, size in enumerate(curve.sizes)
            if not any(low / margin < size < high * margin for low, high in covered)
        ]  # fmt: skip
        if fresh:
            sizes += [float(curve.sizes[k]) for k in fresh]
            times += [float(curve.times_us[k]) for k in fresh]
            owner += [i] * len(fresh)
            covered.append(curve.range_bytes)
    return np.array(sizes), np.array(times), np.array(owner, dtype=np.int64)


def _data_sheet(kind: str, shape: GroupShape, platform: PlatformSpec) -> Candidate:
    line = roofline(kind, shape, platform)
    sizes = np.exp2(np.arange(3.0, 35.0))
    curve = Curve(sizes, line.time_us(sizes), 0.0)
    return Candidate(curve, np.inf, Source.ROOFLINE, ROOFLINE_SPREAD, ROOFLINE_NOTE)
