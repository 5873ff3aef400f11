"""Choose the exponents of anchoring on operators that several GPUs ran.

Of an operator, x = ln(measured ÷ model) on the first GPU and y the same on the second. The exponent w that
makes w·x the best guess of y, by the least sum of |y − w·x| over the second step's time, is the weighted
median of y ÷ x. Every ordered pair of GPUs counts alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lab.fit.anchoring.operator_steps import OperatorStep, ordered_pairs
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.traced.weights import PRODUCT, STREAM, UNSIZED, AnchorWeights, class_of
from stepsight.program.job import Kernel, Sizing

FADES_US = (0.0, 10.0, 20.0, 30.0, 50.0, 100.0)
"""Candidates for the time under which an exponent fades."""
DIGITS = 2


@dataclass(frozen=True, slots=True)
class PairSample:
    """One workload on two GPUs, operator by operator; times in µs."""

    name: str
    source: str
    target: str
    kinds: tuple[str, ...]
    measured_us: FloatArray
    model_us: FloatArray
    there_us: FloatArray
    model_there_us: FloatArray

    def predicted_us(self, weights: AnchorWeights) -> FloatArray:
        """The operators on the second GPU, anchored on the first."""
        exponents = np.array(
            [weights.weight(k, t) for k, t in zip(self.kinds, self.measured_us, strict=True)]
        )
        return np.asarray(self.model_there_us * (self.measured_us / self.model_us) ** exponents)

    def error(self, weights: AnchorWeights) -> float:
        """ln(predicted ÷ measured) of the whole step."""
        return float(np.log(self.predicted_us(weights).sum() / self.there_us.sum()))


@lru_cache(maxsize=32)
def _models(gpu: str) -> KernelModels:
    return KernelModels.for_gpu(load_gpu(gpu))


def model_us(step: OperatorStep, gpu: str, *, unsized: bool = False) -> FloatArray:
    """What the models of a GPU say of every kernel of a step; ``unsized``: known by its traffic alone."""
    kernels = [_by_traffic(k) if unsized else k for k in step.kernels]
    return np.asarray(_models(gpu).estimate(kernels).time_us)


def _by_traffic(kernel: Kernel) -> Kernel:
    if kernel.sizing is Sizing.UNKNOWN:
        return kernel
    d = kernel.dim
    size = {
        "gemm": d("batch") * d("m") * d("n"), "fill": d("bytes") / 4,
    }.get(kernel.family, d("rows") * d("cols") * d("elements"))  # fmt: skip
    return Kernel.of(
        "elementwise", sizing=Sizing.UNKNOWN, elements=size, read_bytes=4 * size, write_bytes=4 * size
    )


def pair_samples(steps: Sequence[OperatorStep]) -> Iterator[PairSample]:
    """Every ordered pair, once with the sizes that are known and once with none."""
    for a, b in ordered_pairs(list(steps)):
        if not a.parts:
            continue
        for unsized in (False, True):
            times = [_by_part(a, model_us(a, gpu, unsized=unsized)) for gpu in (a.gpu, b.gpu)]
            kinds = [UNSIZED if unsized else _kind(part.kernels) for part in a.parts]
            yield PairSample(a.name, a.gpu, b.gpu, tuple(kinds), a.part_us, times[0], b.part_us, times[1])


def _by_part(step: OperatorStep, times: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(step.owner, times, len(step.parts)), dtype=np.float64)


def _kind(kernels: Iterable[Kernel]) -> str:
    kinds = {class_of(kernel) for kernel in kernels}
    return next(kind for kind in (UNSIZED, PRODUCT, STREAM) if kind in kinds)


def fit_weights(samples: Sequence[PairSample], provenance: str = "") -> AnchorWeights:
    """The exponents by class, and the fading that leaves the least error."""
    best, _ = min((_fit(samples, fades) for fades in FADES_US), key=lambda fit: fit[1])
    return AnchorWeights(best.weights, best.fades_under_us, provenance)


def _fit(samples: Sequence[PairSample], fades_under_us: float) -> tuple[AnchorWeights, float]:
    found, left = {}, 0.0
    for kind in (PRODUCT, STREAM, UNSIZED):
        x, y, share = _residuals(samples, kind, fades_under_us)
        w = round(float(np.clip(_weighted_median(y / x, share * np.abs(x)), 0.0, 1.0)), DIGITS)
        found[kind] = w
        left += float((share * np.abs(y - w * x)).sum())
    return AnchorWeights(found, fades_under_us), left


def _residuals(
    samples: Sequence[PairSample], kind: str, fades_under_us: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    xs, ys, shares = [], [], []
    for s in samples:
        mine = np.array([k == kind for k in s.kinds])
        fade = s.measured_us / (s.measured_us + fades_under_us)
        xs.append((fade * np.log(s.measured_us / s.model_us))[mine])
        ys.append(np.log(s.there_us / s.model_there_us)[mine])
        shares.append((s.there_us / s.there_us.sum())[mine])
    x = np.concatenate(xs)
    return np.where(np.abs(x) < 1e-6, 1e-6, x), np.concatenate(ys), np.concatenate(shares)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
