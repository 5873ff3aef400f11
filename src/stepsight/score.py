"""How predictions are scored: GMAE and MAPE over stated rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GMAE_FLOOR = 4e-4
"""Added to each relative error so that a perfect row does not make the mean zero (METHOD §4)."""


def gmae(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> float:
    """Geometric mean of the relative errors: exp(mean ln(|error| + 4e-4))."""
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return float(np.exp(np.mean(np.log(np.abs(p / m - 1) + GMAE_FLOOR))))


def mape(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> float:
    """Mean of the relative errors."""
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return float(np.mean(np.abs(p / m - 1)))


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the scoreboard: what was scored, on how many rows, and how it read.

    Errors are fractions (0.05 = 5 %). ``rows_used`` says which rows ("10 % of shapes held
    out, above 60 µs"); ``target`` is the bar in words, ``met`` whether it is cleared. ``exposure`` says
    how blind the rows are: "blind" (nothing was fitted or chosen on them), "chosen" (looked at while
    choosing among models or constants), "fit" (part of a fit); empty takes the topic's.
    """

    topic: str
    name: str
    rows: int
    gmae: float
    mape: float
    rows_used: str
    target: str = ""
    met: bool | None = None
    note: str = ""
    exposure: str = ""

    @classmethod
    def of(
        cls, topic: str, name: str, predicted: npt.ArrayLike, measured: npt.ArrayLike, rows_used: str,
        *, gmae_target: float | None = None, mape_target: float | None = None, note: str = "",
        exposure: str = "",
    ) -> Score:  # fmt: skip
        """Score predicted against measured, with the bars where there are any."""
        g, a = gmae(predicted, measured), mape(predicted, measured)
        bars = [f"GMAE ≤ {gmae_target:.1%}"] if gmae_target is not None else []
        bars += [f"MAPE ≤ {mape_target:.1%}"] if mape_target is not None else []
        met = None
        if bars:
            met = (gmae_target is None or g <= gmae_target) and (mape_target is None or a <= mape_target)
        return cls(
            topic, name, len(np.asarray(measured)), g, a, rows_used, ", ".join(bars), met, note, exposure
        )
