"""Fit what a GPU's specification does not say from measured lookup kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.gpu import GpuCoefficients
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.platform.spec import GpuSpec
from stepsight.workload.program import Kernel

FITTED = {
    "read_efficiency": (0.9, 0.7, 0.95),
    "write_efficiency": (0.9, 0.5, 0.95),
    "l2_efficiency": (0.9, 0.4, 1.0),
    "norm": (3.0, 1.5, 6.0),
    "start_us": (3.0, 1.5, 6.0),
    "bag_cycles": (3000.0, 300.0, 2e4),
    "row_cycles": (600.0, 50.0, 5e3),
    "update_cycles": (2400.0, 300.0, 2e4),
    "backward_start_us": (80.0, 20.0, 150.0),
    "legacy_bag_cycles": (600.0, 50.0, 2e3),
    "legacy_row_cycles": (150.0, 10.0, 500.0),
    "legacy_atomics_per_cycle": (32.0, 10.0, 90.0),
}
"""What is fitted: a first guess, and the bounds. A load that misses takes about 600 cycles under load;
setting up a bag is five of them in a row, folding a lookup into a row four; a dozen kernels that do
next to nothing take 80 µs; an L2 of 32 slices adds 32 values a cycle. The part of the L2 that rows find
room in and the bytes of the sort are not fitted again: the latter is read off a trace."""
_PRIOR = 0.15
"""Weight of staying near the first guess, where the points say little."""


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


def predict(points: Sequence[MeasuredKernel]) -> FloatArray:
    """Times that the shipped coefficients give for measured kernels."""
    return _times(points, _launches(points), GpuCoefficients())


def fit_coefficients(points: Sequence[MeasuredKernel]) -> GpuCoefficients:
    """Robust fit of log errors in which every source weighs the same."""
    from scipy.optimize import least_squares

    guess, low, high = np.log(np.array(list(FITTED.values()))).T
    sources = [p.source for p in points]
    weights = np.array([p.weight / sources.count(p.source) ** 0.5 for p in points])
    measured, launches = np.array([p.time_us for p in points]), _launches(points)

    def errors(logs: FloatArray) -> FloatArray:
        wrong = np.log(_times(points, launches, _coefficients(logs)) / measured) * weights
        return np.concatenate([wrong, _PRIOR * (logs - guess)])

    found = least_squares(
        errors, guess, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60, diff_step=1e-3
    )
    return _coefficients(found.x)


def _coefficients(logs: FloatArray) -> GpuCoefficients:
    values = {name: float(np.exp(v)) for name, v in zip(FITTED, logs, strict=True)}
    return replace(GpuCoefficients(), **values)


def _launches(points: Sequence[MeasuredKernel]) -> list[FloatArray]:
    """What does not change with the coefficients that are fitted."""
    return [EmbeddingModel(p.gpu).launches(p.kernel) for p in points]


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
    for source in {p.source for p in points}:
        fitted = fit_coefficients([p for p in points if p.source != source])
        mine = [i for i, p in enumerate(points) if p.source == source]
        left = [points[i] for i in mine]
        predicted[mine] = _times(left, _launches(left), fitted)
    return predicted
