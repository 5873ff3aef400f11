"""Fit what a GPU's specification does not say from measured lookup kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding.gpu import GpuCoefficients, GpuTimes, shipped_coefficients
from stepsight.kernels.embedding.model import FAMILIES, EmbeddingModel
from stepsight.program.job import Kernel
from stepsight.tables.lookup import SORTED

BACKWARDS = ", backward"
"""How the backwards of a source are distinguished from its forwards."""
Part = Callable[[GpuTimes, FloatArray], FloatArray]
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
FORWARD = {
    "bag_cycles": (3000.0, 500.0, 1e4),
    "row_cycles": (500.0, 100.0, 2e3),
    "miss_cycles": (450.0, 50.0, 2e3),
}
"""Fitted after them on FBGEMM's forwards: a bag begins with four or five loads that wait for each other; a
load takes 200 cycles from the L2 and 375 to 1,030 from memory (Jia et al. 2018) and is waited for, with some
300 cycles of instructions around it."""
ARRANGE = {
    "small_us": (4.0, 2.0, 8.0),
    "pass_us": (11.0, 4.0, 25.0),
    "number_cycles": (400.0, 100.0, 1500.0),
    "sort_efficiency": (0.75, 0.4, 0.95),
}
"""Fitted on the kernels of FBGEMM's backwards that arrange indices: launches that do next to nothing take
3 µs and wait for a load or two; a block of a sort's pass waits for its neighbour's counts."""
UPDATE = {
    "update_us": (9.0, 3.0, 25.0),
    "run_cycles": (4800.0, 500.0, 2e4),
    "block_cycles": (5000.0, 1000.0, 2e4),
}
"""Fitted on the kernels of FBGEMM's backwards that update rows: for each row eight or so loads of 600 cycles
that wait for each other. Of a block, the first warp reads state and row one after the other and sums squares
(1,700) while the others seek the next run; then come its indices and offsets (500), what nothing overlaps at
the start and the end of a block's six runs (500 for each), and 32 sums in five steps (500); every barrier
waits for the slowest of 32 warps, half as much again."""
WARPS = {**FORWARD, **ARRANGE, **UPDATE}
_GUESS = {name: guess for name, (guess, _, _) in {**MEMORY, **WARPS}.items()}
_FIRST = GpuCoefficients(**_GUESS, grid_blocks_per_sm=inf)
"""The traces are of releases whose forwards launch as many blocks as they have bags for."""
_PRIOR = 0.15
"""Weight of staying near the first guess, where the points say little."""
_DIGITS = 3
"""Significant digits that are kept: the points say no more."""


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One measured lookup kernel: where from, on what, and how long it took.

    ``weight`` is below one where something that matters (the indices, the GPU) is not known. ``arranged_us``:
    the part of a sorted backward before it folds gradients, where a trace shows it.
    """

    source: str
    gpu: GpuSpec
    kernel: Kernel
    time_us: float
    weight: float = 1.0
    arranged_us: float = 0.0

    @property
    def origin(self) -> str:
        """The source; forwards and backwards of one trace are left out together."""
        return self.source.removesuffix(BACKWARDS)

    @property
    def legacy(self) -> bool:
        """A kernel of 2020, which updates rows one by one."""
        return self.kernel.lookup is not None and self.kernel.lookup.update != SORTED


def predict(points: Sequence[MeasuredKernel]) -> FloatArray:
    """Times that the shipped coefficients give for measured kernels."""
    return predict_with(shipped_coefficients(), points)


def predict_with(coefficients: GpuCoefficients, points: Sequence[MeasuredKernel]) -> FloatArray:
    """Times that some coefficients give for measured kernels."""
    return _times(points, _launches(points), coefficients)


def fit_coefficients(points: Sequence[MeasuredKernel]) -> GpuCoefficients:
    """Memory on the well-known kernels first, then the parts of the others one by one; rounded."""
    fitted = _fitted([p for p in points if p.legacy], MEMORY, _GUESS)
    sorting = [p for p in points if not p.legacy]
    forwards = [p for p in sorting if p.kernel.family == FAMILIES[0]]
    backwards = [p for p in sorting if p.kernel.family != FAMILIES[0]]
    seen = [p for p in backwards if p.arranged_us]
    fitted = _fitted(forwards, FORWARD, fitted)
    fitted = _fitted([replace(p, time_us=p.arranged_us) for p in seen], ARRANGE, fitted, GpuTimes.arrange_us)
    whole = [p for p in backwards if not p.arranged_us]
    update = [replace(p, time_us=p.time_us - p.arranged_us) for p in seen]
    return GpuCoefficients(**_fitted([*update, *whole], UPDATE, fitted, GpuTimes.update_us))


def _fitted(
    points: Sequence[MeasuredKernel],
    free: Mapping[str, tuple[float, float, float]],
    known: Mapping[str, float],
    part: Part | None = None,
) -> dict[str, float]:
    """Robust fit of log errors in which every source weighs the same; ``part``: what of a traced backward."""
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
        times = _times(points, launches, GpuCoefficients(**coefficients(logs)), part)
        return np.concatenate([np.log(times / measured) * weights, _PRIOR * (logs - guess)])

    found = least_squares(
        errors, guess, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60, diff_step=1e-3
    )
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients(found.x).items()}


def _launches(points: Sequence[MeasuredKernel]) -> list[FloatArray]:
    """What does not change with the coefficients that are fitted."""
    return [EmbeddingModel(p.gpu, _FIRST).launches(p.kernel) for p in points]


def _times(
    points: Sequence[MeasuredKernel], launches: Sequence[FloatArray], coefficients: GpuCoefficients,
    part: Part | None = None,
) -> FloatArray:  # fmt: skip
    return np.array(
        [
            EmbeddingModel(p.gpu, coefficients).launches_us(p.kernel, columns)
            if part is None or not p.arranged_us
            else part(GpuTimes(p.gpu, coefficients), columns).sum()
            for p, columns in zip(points, launches, strict=True)
        ]
    )


def predict_left_out(points: Sequence[MeasuredKernel]) -> FloatArray:
    """For every point the time by coefficients fitted on the other sources alone."""
    predicted = np.zeros(len(points))
    for origin in dict.fromkeys(p.origin for p in points):
        fitted = fit_coefficients([p for p in points if p.origin != origin])
        mine = [i for i, p in enumerate(points) if p.origin == origin]
        predicted[mine] = predict_with(fitted, [points[i] for i in mine])
    return predicted
