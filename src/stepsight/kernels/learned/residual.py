"""What physics leaves open of a kernel's time, learned by boosted trees on machine-relative columns.

``time = base × exp(trees(columns))``. The base carries how the time grows; the trees correct it inside
the fitted range and, being trees, stay flat outside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import beyond_shapes, joined
from stepsight.kernels.learned.trees import ObliviousTrees, as_table, beyond, load_trees, save_trees
from stepsight.kernels.machine import generation

OUTSIDE_SPREAD = area("kernels").number("OUTSIDE_SPREAD")
RESIDUALS_FILE = "half/residuals.npz"
FAR = 0.7
"""E-folds outside the fitted range (a factor of two in one size) from which an answer says so."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Trees for one family and variant, fitted on one GPU.

    ``spread`` is the standard deviation of ln(time) on shapes left out of the fit. ``low`` and
    ``high`` bound the fitted columns.
    """

    family: str
    variant: str
    gpu: str
    architecture: str
    sms: int
    columns: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    spread: float
    rows: int
    gmae: float
    source: str
    trees: ObliviousTrees

    def factor(self, named: Mapping[str, FloatArray]) -> FloatArray:
        """What to multiply the base by."""
        return np.asarray(np.exp(self.trees.predict(as_table(named, self.columns))))

    def outside(self, named: Mapping[str, FloatArray], columns: Iterable[str] | None = None) -> FloatArray:
        """How far (in e-folds, over all or these columns) each kernel lies outside the fitted range."""
        at = [i for i, key in enumerate(self.columns) if columns is None or key in columns]
        low, high = [self.low[i] for i in at], [self.high[i] for i in at]
        return beyond(named, [self.columns[i] for i in at], low, high)

    def corrected(
        self, base_us: FloatArray, named: Mapping[str, FloatArray], spec: GpuSpec, elsewhere: float
    ) -> Estimates:
        """``base_us`` with the correction; ``elsewhere`` is the spread added on another chip than its own."""
        outside, own = self.outside(named), self.same_chip(spec)
        inside = self.spread if own else float(np.hypot(self.spread, elsewhere))
        spread: FloatArray = np.hypot(inside, OUTSIDE_SPREAD * (1 - np.exp(-outside)))
        model = "" if own else f"model of {self.gpu}, scaled to this GPU"
        notes = {}
        for i in range(len(base_us)) if model else np.nonzero(outside > FAR)[0].tolist():
            far = beyond_shapes(inside, float(spread[i])) if outside[i] > FAR else ""
            if model or far:
                notes[i] = joined(model, far)
        source = np.full(len(base_us), int(Source.LEARNED if own else Source.TRANSFERRED))
        return Estimates(base_us * self.factor(named), source, spread, notes)

    def same_chip(self, spec: GpuSpec) -> bool:
        return (self.architecture, self.sms) == (spec.architecture, spec.sms)


def nearest(residuals: Sequence[Residual], family: str, variant: str, spec: GpuSpec) -> Residual | None:
    """The residual of this chip, else that of the nearest generation; None where the variant has none."""
    fitting = [r for r in residuals if (r.family, r.variant) == (family, variant)]
    if not fitting:
        return None

    def distance(r: Residual) -> tuple[bool, float, float]:
        apart = abs(generation(r.architecture) - generation(spec.architecture))
        return not r.same_chip(spec), apart, abs(float(np.log(r.sms / spec.sms)))

    return min(fitting, key=distance)


def save_residuals(path: Path, residuals: Sequence[Residual]) -> None:
    """Write residuals into one artefact."""
    records = [{k: v for k, v in asdict(residual).items() if k != "trees"} for residual in residuals]
    save_trees(path, [(record, each.trees) for record, each in zip(records, residuals, strict=True)])


@lru_cache(maxsize=4)
def load_residuals(path: Path) -> tuple[Residual, ...]:
    """The residuals of one artefact."""
    tuples = ("columns", "low", "high")
    return tuple(
        Residual(**{**record, **{key: tuple(record[key]) for key in tuples}, "trees": trees})
        for record, trees in load_trees(path)
    )
