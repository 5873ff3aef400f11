"""What lies between two measured sizes that are far apart: curves that run alike where sizes are known.

Protocols and algorithms switch between two sizes that are five octaves apart, and a straight line
knows nothing of that. Another curve of the same or a like machine does: where it agrees with the
known times up to a factor, its detour from its own straight line is taken over. Many curves vote by
how well they agree (a weighted median), and "no detour" has a vote too, so that a curve like no
other stays straight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import FloatArray

if TYPE_CHECKING:
    from stepsight.collectives.curve import Curve

_CONSTANTS = area("collectives")
ALIKE = _CONSTANTS.number("ALIKE")
FAR_APART = _CONSTANTS.number("FAR_APART")
FEWEST_KNOWN = _CONSTANTS.whole("FEWEST_KNOWN")
FEWEST_SHARED = _CONSTANTS.whole("FEWEST_SHARED")
KNOT_OCTAVES = _CONSTANTS.number("KNOT_OCTAVES")
LEVEL = _CONSTANTS.number("LEVEL")
ON_A_LINE = _CONSTANTS.number("ON_A_LINE")
STRAIGHT = _CONSTANTS.number("STRAIGHT")

Name = tuple[Any, ...]
PER_OCTAVE = 4
LADDER = np.exp2(np.arange(0, 36 * PER_OCTAVE + 1) / PER_OCTAVE)
"""The sizes at which known curves are held: every quarter of an octave up to 64 GiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Known curves on a common ladder: ln(time), (curves, `LADDER`), not a number outside their range."""

    ln_time: FloatArray

    @classmethod
    def of(cls, curves: Iterable[Curve]) -> Shapes:
        return cls(np.array([_on_ladder(curve) for curve in curves]).reshape(-1, len(LADDER)))

    def where(self, mask: npt.NDArray[np.bool_]) -> Shapes:
        """Some of the curves."""
        return Shapes(self.ln_time[mask])

    def filled(self, sizes: FloatArray, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The knots with more of them where two lie far apart."""
        gaps = np.flatnonzero(sizes[1:] / sizes[:-1] >= FAR_APART)
        if not far_apart(sizes) or not len(self.ln_time) or _is_line(sizes, times):
            return sizes, times
        known = self._at(sizes)
        offset = np.log(times) - known
        votes = _votes(offset)
        more_sizes, more_times = [sizes], [times]
        for i in gaps:
            octaves = np.log2(sizes[i + 1] / sizes[i])
            inside = sizes[i] * np.exp2(np.arange(KNOT_OCTAVES, octaves - KNOT_OCTAVES / 2, KNOT_OCTAVES))
            share = (inside - sizes[i]) / (sizes[i + 1] - sizes[i])
            ends = np.exp(known[:, i : i + 2])
            straight = np.log(ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * share)
            detour = self._at(inside) - straight
            line = times[i] + (times[i + 1] - times[i]) * share
            made = line * np.exp(_elected(detour, votes))
            more_sizes.append(inside)
            more_times.append(np.clip(np.maximum.accumulate(made), times[i], times[i + 1]))
        order = np.argsort(np.concatenate(more_sizes), kind="stable")
        return np.concatenate(more_sizes)[order], np.concatenate(more_times)[order]

    def _at(self, sizes: FloatArray) -> FloatArray:
        """ln(time) of every curve at these sizes."""
        place = np.clip(np.log2(np.maximum(sizes, 1.0)) * PER_OCTAVE, 0, len(LADDER) - 1)
        low = np.minimum(place.astype(np.int64), len(LADDER) - 2)
        part = place - low
        # A curve that ends at a rung is known there, although not beyond it.
        above = np.where(part > 0, self.ln_time[:, low + 1], 0.0)
        return np.asarray(self.ln_time[:, low] * (1 - part) + above * part, dtype=np.float64)


NO_SHAPES = Shapes(np.zeros((0, len(LADDER))))
"""Nothing known but the sizes themselves: straight lines."""


def far_apart(sizes: FloatArray) -> bool:
    """Whether known sizes leave gaps, and are enough to tell their curve from others."""
    return len(sizes) >= FEWEST_KNOWN and bool((sizes[1:] / sizes[:-1] >= FAR_APART).any())


@lru_cache(maxsize=1)
def shipped_shapes() -> Shapes:
    """The curves of the catalogue's machines."""
    from stepsight.collectives.measured import load_catalogue

    return Shapes.of(curve for system in load_catalogue().systems for curve in system.curves.values())


def pooled(shapes: Shapes, names: Sequence[Name]) -> tuple[Shapes, list[Name]]:
    """Curves of one name as one, the median at every size (as the catalogue pools runs); with the names."""
    distinct = list(dict.fromkeys(names))
    rows = [np.array([name == wanted for name in names]) for wanted in distinct]
    with np.errstate(all="ignore"):
        made = [_median(shapes.ln_time[row]) for row in rows]
    return Shapes(np.array(made).reshape(-1, len(LADDER))), distinct


def _is_line(sizes: FloatArray, times: FloatArray) -> bool:
    """Whether one latency and one bandwidth explain all times: then nothing switches between them."""
    share = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    line = times[:-2] + share * (times[2:] - times[:-2])
    return bool((np.abs(np.log(times[1:-1] / line)) < ON_A_LINE).all())


def _median(rows: FloatArray) -> FloatArray:
    known = ~np.isnan(rows).all(axis=0)
    result = np.full(rows.shape[1], np.nan)
    result[known] = np.nanmedian(rows[:, known], axis=0)
    return result


def _on_ladder(curve: Curve) -> FloatArray:
    low, high = curve.range_bytes
    inside = (0.99 * low <= LADDER) & (1.01 * high >= LADDER)
    result = np.full(len(LADDER), np.nan)
    result[inside] = np.log(curve.time_us(LADDER[inside]))
    return result


def _votes(offset: FloatArray) -> FloatArray:
    """What each curve's detours count, by how it runs where times are known; zero where too few are."""
    shared = ~np.isnan(offset)
    usable = shared.sum(axis=1) >= FEWEST_SHARED
    votes = np.zeros(len(offset))
    level = np.array([np.median(row[mask]) for row, mask in zip(offset[usable], shared[usable], strict=True)])
    apart = np.where(shared[usable], offset[usable] - level[:, None], 0.0)
    off = (apart**2).sum(axis=1) / shared[usable].sum(axis=1) + (LEVEL * level) ** 2
    votes[usable] = np.exp(-0.5 * off / ALIKE**2) * shared[usable].mean(axis=1)
    return votes


def _elected(detour: FloatArray, votes: FloatArray) -> FloatArray:
    """The weighted median of all detours and of none, size by size."""
    known = ~np.isnan(detour)
    weight = np.vstack([np.where(known, votes[:, None], 0.0), np.full(detour.shape[1], STRAIGHT)])
    value = np.vstack([np.where(known, detour, 0.0), np.zeros(detour.shape[1])])
    order = np.argsort(value, axis=0, kind="stable")
    summed = np.cumsum(np.take_along_axis(weight, order, 0), axis=0)
    middle = (summed < summed[-1] / 2).sum(axis=0)
    return np.asarray(np.take_along_axis(value, np.take_along_axis(order, middle[None], 0), 0)[0])
