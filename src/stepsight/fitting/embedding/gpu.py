"""Fit what a GPU's specification does not say from measured lookup kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding.gpu import GpuCoefficients, shipped_coefficients
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.program.job import Kernel

MEMORY = {
    "read_efficiency": (0.88, 0.7, 0.95),
    "write_efficiency": (0.85, 0.5, 0.95),
    "start_us": (3.0, 1.5, 6.0),
    "legacy_bag_cycles": (600.0, 50.0, 4e3),
    "legacy_row_cycles": (250.0, 10.0, 1500.0),
    "scattered_bytes": (800.0, 100.0, 3e3),
    "contended_cycles": (4.0, 0.5, 32.0),
}
"""Fitted on kernels that update rows one by one, whose sizes and indices are known: a first guess, and the
bounds. Streams reach 88 % of the data sheet on a V100, reads and writes mixed a little less; a launch that
does nothing takes 3 µs; a load that hits the L2 takes 200 to 300 cycles and a bag begins with two of them;
an update costs a row buffer of 1 KB; a line of the L2 takes its four sectors one after the other."""
WARPS = {
    "bag_cycles": (6000.0, 600.0, 4e4),
    "row_cycles": (1200.0, 100.0, 1e4),
    "update_cycles": (4800.0, 600.0, 4e4),
    "backward_start_us": (80.0, 20.0, 150.0),
}
"""Fitted after them on FBGEMM's kernels, most of them in traces that do not tell the indices: under load a
fetch takes 1,200 cycles with all warps at work, setting up a bag five of them and folding in a lookup four;
a dozen kernels that do next to nothing take 80 µs."""
_GUESS = {name: guess for name, (guess, _, _) in {**MEMORY, **WARPS}.items()}
_FIRST = GpuCoefficients(**_GUESS)
_PRIOR = 0.15
"""Weight of staying near the first guess, where the points say little."""
_DIGITS = 3
"""Significant digits that are kept: the points say no more."""


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One measured lookup kernel: where from, on what, and how long it took.

    ``weight`` is below one where something that matters (the indices, the GPU) is not known.
    """

    source: str
    gpu: GpuSpec
    kernel: Kernel
    time_us: float
    weight: float = 1.0

    @property
    def legacy(self) -> bool:
        """A kernel of 2020, which updates rows one by one."""
        return self.kernel.lookup is not None and not self.kernel.lookup.sorted_update


def predict(points: Sequence[MeasuredKernel]) -> FloatArray:
    """Times that the shipped coefficients give for measured kernels."""
    return predict_with(shipped_coefficients(), points)


def predict_with(coefficients: GpuCoefficients, points: Sequence[MeasuredKernel]) -> FloatArray:
    """Times that some coefficients give for measured kernels."""
    return _times(points, _launches(points), coefficients)


def fit_coefficients(points: Sequence[MeasuredKernel]) -> GpuCoefficients:
    """Memory on the well-known kernels first, then the warps' work on the others; rounded."""
    memory = _fitted([p for p in points if p.legacy], MEMORY, _GUESS)
    return GpuCoefficients(**_fitted([p for p in points if not p.legacy], WARPS, memory))


def _fitted(
    points: Sequence[MeasuredKernel],
    free: Mapping[str, tuple[float, float, float]],
    known: Mapping[str, float],
) -> dict[str, float]:
    """Robust fit of log errors in which every source weighs the same."""
    from scipy.optimize import least_squares

    if not points:
        return dict(known)
    guess, low, high = np.log(np.array(list(free.values()))).T
    sources = [p.source for p in points]
    weights = np.array([p.weight / sources.count(p.source) ** 0.5 for p in points])
    measured, launches = np.array([p.time_us for p in points]), _launches(points)

    def coefficients(logs: FloatArray) -> dict[str, float]:
        return {**known, **{name: float(np.exp(v)) for name, v in zip(free, logs, strict=True)}}

    def errors(logs: FloatArray) -> FloatArray:
        times = _times(points, launches, GpuCoefficients(**coefficients(logs)))
        return np.concatenate([np.log(times / measured) * weights, _PRIOR * (logs - guess)])

    found = least_squares(
        errors, guess, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60, diff_step=1e-3
    )
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients(found.x).items()}


def _launches(points: Sequence[MeasuredKernel]) -> list[FloatArray]:
    """What does not change with the coefficients that are fitted."""
    return [EmbeddingModel(p.gpu, _FIRST).launches(p.kernel) for p in points]


def _times(
    points: Sequence[MeasuredKernel], launches: Sequence[FloatArray], coefficients: GpuCoefficients
) -> FloatArray:
    return np.array(
        [
            EmbeddingModel(p.gpu, coefficients).launches_us(p.kernel, columns)
            for p, columns in zip(points, launches, strict=True)
        ]
    )


def predict_left_out(points: Sequence[MeasuredKernel]) -> FloatArray:
    """For every point the time by coefficients fitted on the other sources alone."""
    predicted = np.zeros(len(points))
    for source in dict.fromkeys(p.source for p in points):
        fitted = fit_coefficients([p for p in points if p.source != source])
        mine = [i for i, p in enumerate(points) if p.source == source]
        predicted[mine] = predict_with(fitted, [points[i] for i in mine])
    return predicted
