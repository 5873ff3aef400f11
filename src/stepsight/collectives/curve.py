"""A measured curve: the time of one collective on one group over its message sizes.

Between two measured sizes the time is linear in bytes, after noise and slow detours have been removed by the
lower envelope: the time of a size is never more than the least time that any larger message took. On measured
curves with every other size left out this beats log-log interpolation (PCHIP, straight lines), soft-min forms
and sigmoids (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.errors import StepsightError
from stepsight.estimate import MAD_TO_SD, FloatArray

C = area("collectives")
LATENCY_BYTES = C.whole("LATENCY_BYTES")


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Time over message size: monotone, with a latency floor and a slope beyond its range.

    ``sizes`` and ``times_us`` are the knots; ``measured_spread`` is how far a left-out size
    lies from its neighbours' line, as the standard deviation of ln(time).
    """

    sizes: FloatArray
    times_us: FloatArray
    measured_spread: float = C.DEFAULT_SPREAD

    @classmethod
    def fit(cls, bytes: npt.ArrayLike, time_us: npt.ArrayLike) -> Curve:
        """A curve through measured times, in any order, with repeats.

        Repeats of one size (iterations, in-place and out-of-place) count by their median.
        """
        sizes, times = _checked(bytes, time_us)
        sizes, times = _without_lone_dips(*_median_of_repeats(sizes, times))
        return cls(sizes, _lower_envelope(times), _left_out_spread(sizes, times))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Curve:
        """The curve that `record` wrote."""
        sizes, times = _checked(record["bytes"], record["time_us"])
        return cls(sizes, times, float(record["spread"]))

    def record(self) -> dict[str, Any]:
        """Knots and spread as plain lists, for JSON."""
        return {
            "bytes": [float(size) for size in self.sizes],
            "time_us": [round(float(time), 4) for time in self.times_us],
            "spread": round(self.measured_spread, 4),
        }

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def range_bytes(self) -> tuple[float, float]:
        """The smallest and the largest measured size."""
        return float(self.sizes[0]), float(self.sizes[-1])

    def time_us(self, bytes: npt.ArrayLike) -> FloatArray:
        """The time of messages of any size; more bytes never take less time."""
        wanted = np.asarray(bytes, dtype=np.float64)
        times = np.interp(wanted, self.sizes, self.times_us)
        low, high = self.range_bytes
        if wanted.size and wanted.max() > high:
            times = np.where(wanted > high, times + self._slope_above() * (wanted - high), times)
        if wanted.size and wanted.min() < low:
            first = float(self.times_us[0])
            fallen = np.maximum(times - self._slope_below() * (low - wanted), C.FLOOR_SHARE * first)
            times = np.where(wanted < low, fallen, times)
        return np.asarray(times, dtype=np.float64)

    def spread(self, bytes: npt.ArrayLike) -> FloatArray:
        """Standard deviation of ln(time): the curve's own, and more beyond its range."""
        wanted = np.maximum(np.asarray(bytes, dtype=np.float64), 1.0)
        low, high = self.range_bytes
        above = C.ABOVE_SPREAD * (np.log(np.maximum(wanted / high, 1.0)) / np.log(C.TAIL_FACTOR)) ** 2
        below = C.BELOW_SPREAD * max(1.0, float(np.log2(max(low, 1.0) / LATENCY_BYTES)))
        beyond = np.where(wanted < low, np.minimum(below, np.log2(low / np.minimum(wanted, low))), above)
        return np.asarray(np.hypot(self.measured_spread, np.minimum(beyond, 2.0)), dtype=np.float64)

    def _slope_above(self) -> float:
        """µs per byte over the last factor of four, never more than in proportion."""
        high, last = float(self.sizes[-1]), float(self.times_us[-1])
        if len(self) == 1:
            return last / high
        inner = max(high / C.TAIL_FACTOR, float(self.sizes[0]))
        inner_time = float(np.interp(inner, self.sizes, self.times_us))
        return min((last - inner_time) / (high - inner), last / high)

    def _slope_below(self) -> float:
        low, first = float(self.sizes[0]), float(self.times_us[0])
        if len(self) == 1:
            return 0.0
        outer = min(low * C.TAIL_FACTOR, float(self.sizes[-1]))
        outer_time = float(np.interp(outer, self.sizes, self.times_us))
        return (outer_time - first) / (outer - low)


def _checked(bytes: npt.ArrayLike, time_us: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    sizes = np.atleast_1d(np.asarray(bytes, dtype=np.float64))
    times = np.atleast_1d(np.asarray(time_us, dtype=np.float64))
    if sizes.shape != times.shape or sizes.ndim != 1:
        raise StepsightError(f"a curve needs one time per size, not {times.shape} for {sizes.shape}")
    if len(sizes) == 0:
        raise StepsightError("a curve needs at least one measured size")
    if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
        raise StepsightError("a curve cannot hold sizes or times that are not numbers; leave those rows out")
    if (sizes <= 0).any() or (times <= 0).any():
        raise StepsightError(
            "a curve cannot hold sizes or times of zero or less: the benchmark did not measure those; "
            "leave such rows out"
        )
    return sizes, times


def _median_of_repeats(sizes: FloatArray, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(times[sizes == size]) for size in distinct])


def _without_lone_dips(sizes: FloatArray, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Drop single sizes far faster than two smaller and two larger ones: the envelope would
    otherwise drag every smaller size down to them."""
    kept = np.ones(len(sizes), dtype=bool)
    for i in range(2, len(sizes) - 1):
        around = np.concatenate([times[i - 2 : i], times[i + 1 : i + 3]])
        kept[i] = times[i] >= C.LONE_DIP * around.min()
    return sizes[kept], times[kept]


def _lower_envelope(times: FloatArray) -> FloatArray:
    """The least time that this size or any larger one took."""
    return np.minimum.accumulate(times[::-1])[::-1]


def _left_out_spread(sizes: FloatArray, times: FloatArray) -> float:
    """How far each size lies from the line of its neighbours, over the middle of the errors."""
    if len(sizes) < 5:
        return C.DEFAULT_SPREAD
    envelope = _lower_envelope(times)
    weight = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    between = envelope[:-2] + weight * (envelope[2:] - envelope[:-2])
    errors = np.abs(np.log(times[1:-1] / between))
    return float(np.clip(MAD_TO_SD * np.median(errors), C.LEAST_SPREAD, 1.0))
