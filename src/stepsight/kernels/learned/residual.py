"""What physics leaves open of a kernel's time, learned by boosted trees on machine-relative columns.

``time = base × exp(trees(columns))``. The base carries how the time grows; the trees correct it inside
the fitted range and, being trees, stay flat outside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.learned.trees import ObliviousTrees, as_table
from stepsight.kernels.machine import generation

RESIDUALS_FILE = "half/residuals.npz"
FORMAT = 1
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

    def outside(self, named: Mapping[str, FloatArray]) -> FloatArray:
        """How far (in e-folds, over all columns) each kernel lies outside the fitted range."""
        total = np.zeros(len(named[self.columns[0]]))
        for key, low, high in zip(self.columns, self.low, self.high, strict=True):
            total += np.maximum(0.0, np.maximum(named[key] - high, low - named[key]))
        return total

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
    """One compressed .npz: arrays plus a line of JSON."""
    arrays: dict[str, np.typing.NDArray[np.generic]] = {}
    headers = []
    for i, residual in enumerate(residuals):
        header = asdict(residual)
        trees = residual.trees
        header["trees"] = {"bias": trees.bias}
        headers.append(header)
        arrays[f"{i}_feature"] = trees.feature.astype(np.uint8)
        arrays[f"{i}_threshold"] = trees.threshold.astype(np.float32)
        arrays[f"{i}_leaf"] = trees.leaf.astype(np.float16)
    text = json.dumps({"format": FORMAT, "residuals": headers}, sort_keys=True)
    arrays["header"] = np.frombuffer(text.encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_residuals(path: Path) -> tuple[Residual, ...]:
    """The residuals of one file; none where there is no such file."""
    if not path.is_file():
        return ()
    with np.load(path) as arrays:
        content = json.loads(bytes(arrays["header"]).decode())
        if content["format"] != FORMAT:
            raise InputError(str(path), f"is of format {content['format']}, not {FORMAT}", "fit it again")
        found = []
        for i, header in enumerate(content["residuals"]):
            trees = ObliviousTrees(
                arrays[f"{i}_feature"].astype(np.int64),
                arrays[f"{i}_threshold"],
                arrays[f"{i}_leaf"].astype(np.float32),
                float(header.pop("trees")["bias"]),
            )
            for key in ("columns", "low", "high"):
                header[key] = tuple(header[key])
            found.append(Residual(**header, trees=trees))
    return tuple(found)


@lru_cache(maxsize=4)
def cached_residuals(path: Path) -> tuple[Residual, ...]:
    """`load_residuals`, read once."""
    return load_residuals(path)
