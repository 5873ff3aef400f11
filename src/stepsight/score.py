"""How predictions are scored: GMAE and MAPE over stated rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

GMAE_FLOOR = 4e-4
"""Added to each relative error so that a perfect row does not make the mean zero (METHOD §4)."""
BLIND, CHOSEN, FIT = "blind", "chosen", "fit"
"""How blind rows are: nothing was fitted or chosen on them; they were in sight while models or constants were
chosen; a fit or a constant was made from them."""


def gmae(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> float:
    """Geometric mean of the relative errors: exp(mean ln(|error| + 4e-4))."""
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return float(np.exp(np.mean(np.log(np.abs(p / m - 1) + GMAE_FLOOR))))


def mape(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> float:
    """Mean of the relative errors."""
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return float(np.mean(np.abs(p / m - 1)))


@dataclass(frozen=True, slots=True)
class Figure:
    """What a line reads where it is no error of times: a mean regret, a share of rows, a correlation.

    ``better`` says which way it should go; empty: neither, as for the share that an interval holds.
    """

    name: str
    value: float
    better: Literal["less", "more", ""] = "less"
    is_share: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.value:.1%}" if self.is_share else f"{self.name} {self.value:.3f}"


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the scoreboard: what was scored, on how many rows, and how it read.

    Errors are fractions (0.05 = 5 %); a line that has none reads a ``figure``. ``rows_used`` says which rows
    ("10 % of shapes held out, above 60 µs"); ``target`` is the bar in words, ``met`` whether it is cleared
    (None with a target: the rows do not decide). ``exposure`` says how blind the rows are (`BLIND`, `CHOSEN`,
    `FIT`). Lines of one ``kind`` differ in the GPU or the stack only and may be summed up; empty: the line
    stands alone. ``predictor`` names whose predictions they are where they are not ours, ``same_rows_as`` our
    line on these rows.
    """

    topic: str
    name: str
    rows: int
    gmae: float | None
    mape: float | None
    rows_used: str
    target: str = ""
    met: bool | None = None
    note: str = ""
    exposure: str = field(kw_only=True)
    kind: str = ""
    predictor: str = ""
    same_rows_as: str = ""
    figure: Figure | None = None

    @classmethod
    def of(
        cls, topic: str, name: str, predicted: npt.ArrayLike, measured: npt.ArrayLike, rows_used: str,
        *, exposure: str, gmae_target: float | None = None, mape_target: float | None = None, note: str = "",
        kind: str = "", predictor: str = "", same_rows_as: str = "",
    ) -> Score:  # fmt: skip
        """Score predicted against measured, with the bars where there are any."""
        g, a = gmae(predicted, measured), mape(predicted, measured)
        bars = [f"GMAE ≤ {gmae_target:.1%}"] if gmae_target is not None else []
        bars += [f"MAPE ≤ {mape_target:.1%}"] if mape_target is not None else []
        met = None
        if bars:
            met = (gmae_target is None or g <= gmae_target) and (mape_target is None or a <= mape_target)
        return cls(
            topic, name, len(np.asarray(measured)), g, a, rows_used, ", ".join(bars), met, note,
            exposure=exposure, kind=kind, predictor=predictor, same_rows_as=same_rows_as,
        )  # fmt: skip

    @classmethod
    def reading(
        cls, topic: str, name: str, rows: int, figure: Figure, rows_used: str, *, exposure: str,
        bar: float | None = None, target: str = "", met: bool | None = None, note: str = "", kind: str = "",
    ) -> Score:  # fmt: skip
        """A line that reads a figure of its own instead of errors; ``bar``: at least or at most that."""
        if bar is not None:
            sign, met = ("≥", figure.value >= bar) if figure.better == "more" else ("≤", figure.value <= bar)
            target = f"{sign} {bar:.0%}" if figure.is_share else f"{sign} {bar:g}"
        return cls(
            topic, name, rows, None, None, rows_used, target, met, note, exposure=exposure, kind=kind,
            figure=figure,
        )  # fmt: skip

    @property
    def errors(self) -> str:
        """What the line reads, short: GMAE / MAPE, or its figure."""
        if self.gmae is not None and self.mape is not None:
            return f"{self.gmae:.1%} / {self.mape:.1%}"
        return str(self.figure) if self.figure else ""

    @property
    def verdict(self) -> str:
        """Whether the bar is met; empty where there is none."""
        if self.met is None:
            return "open" if self.target else ""
        return "met" if self.met else "missed"
