"""Constants fitted on traces, kept with what each run contributed: a source can be left out at any time.

`lab fit traces` writes the file. A constant is pooled from one figure a run, so that leaving a source
out is pooling the other runs' figures: nothing has to be measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

FILE = "fitted.json"
SHIPPED = Path(__file__).parent / FILE
FEWEST = 2
"""Sources below which nothing is pooled: the stated value holds."""
SPREAD, ROOT_MEAN_SQUARE, MEDIAN, NINETY = "spread", "root_mean_square", "median", "ninety"
_ONE_SIGMA, _NINE_IN_TEN = 0.6827, 0.9
"""Shares of a normal distribution within one standard deviation, and of what an interval is to hold."""
COLLECTIONS = ("liplus", "meta_dlrm", "nanogpt", "resnet50_V100", "tracelens")
"""Folders whose names begin alike are one source: the same people recorded them."""


def source_of(folder: str) -> str:
    """The source that a folder of traces belongs to."""
    return next((name for name in COLLECTIONS if folder.startswith(name)), folder)


class RunFigure(msgspec.Struct, frozen=True):
    """What one run says of a constant."""

    source: str
    value: float


class FittedConstant(msgspec.Struct, frozen=True):
    """One constant: how its runs' figures are pooled, and the figures.

    ``spread``: what 68 % of the figures, errors as logarithms, do not pass: a standard deviation where
    errors are normal. ``root_mean_square`` of the figures. ``median`` of the sources' medians.
    ``ninety``: what 90 % do not pass. Sources count alike, however many runs they have.
    """

    pool: str
    runs: tuple[RunFigure, ...]

    def value(self, without: str = "") -> float | None:
        """The pooled figure without one source; None where too few sources are left."""
        by_source: dict[str, list[float]] = {}
        for run in self.runs:
            if not without or run.source != without:
                by_source.setdefault(run.source, []).append(run.value)
        if len(by_source) < FEWEST:
            return None
        if self.pool in (SPREAD, NINETY):
            return _quantile(by_source, _ONE_SIGMA if self.pool == SPREAD else _NINE_IN_TEN)
        if self.pool == ROOT_MEAN_SQUARE:
            return float(np.sqrt(np.mean([np.mean(np.square(values)) for values in by_source.values()])))
        return float(np.median([np.median(values) for values in by_source.values()]))

    @property
    def sources(self) -> list[str]:
        return sorted({run.source for run in self.runs})


def _quantile(by_source: Mapping[str, list[float]], share: float) -> float:
    """What a share of the figures, taken without their signs, does not pass; each source weighs one."""
    weighed = sorted((abs(value), 1 / len(values)) for values in by_source.values() for value in values)
    total = np.cumsum([weight for _, weight in weighed])
    return weighed[int(np.searchsorted(total, share * total[-1] - 1e-9))][0]


class Fitted(msgspec.Struct, frozen=True):
    """All of them, by name, with what they were fitted from."""

    provenance: str = ""
    constants: Mapping[str, FittedConstant] = {}

    def value(self, name: str, without: str = "") -> float | None:
        found = self.constants.get(name)
        return found.value(without) if found else None


@lru_cache(maxsize=1)
def shipped() -> Fitted:
    """Those that come with stepsight; none where the file is absent."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Fitted) if SHIPPED.is_file() else Fitted()


@lru_cache(maxsize=1024)
def fitted_value(name: str, without: str = "") -> float | None:
    """A shipped constant, pooled without one source; None where it is not fitted or too few are left."""
    return shipped().value(name, without)


def forget() -> None:
    """Read the shipped file again when next asked: it was just written."""
    shipped.cache_clear()
    fitted_value.cache_clear()
