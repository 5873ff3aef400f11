"""Rows of a measured table as the models answer them: predicted, measured, inside the interval or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lab.fit.kernels.events import reading_us
from lab.fit.kernels.learn import NORMAL_90
from lab.fit.kernels.sources import Measured
from stepsight.estimate import FloatArray
from stepsight.kernels.models import KernelModels
from stepsight.score import CHOSEN, Score

TOPIC = "kernels"
ABOVE_US = 60.0
"""Event-timed rows are scored above this: below, they read the launch path."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Predicted and measured times, and whether each 90 % interval holds its row; ``kind`` as in `Score`."""

    name: str
    predicted: FloatArray
    measured: FloatArray
    inside: npt.NDArray[np.bool_]
    used: str
    kind: str = ""

    @classmethod
    def of(
        cls, name: str, predicted: FloatArray, measured: FloatArray, spread: FloatArray, used: str,
        kind: str = "",
    ) -> Judged:  # fmt: skip
        """Held by the interval where the logarithm is off by less than 90 % of the spread's normal."""
        inside = np.abs(np.log(measured / predicted)) <= NORMAL_90 * spread
        return cls(name, predicted, measured, inside, used, kind)

    def score(
        self, bars: tuple[float | None, float | None] | None = None, *, exposure: str = CHOSEN
    ) -> Score:
        """The line of the scoreboard, with bars on GMAE and MAPE; of rows left out of their fit, unless
        ``exposure`` says otherwise."""
        gmae, mape = bars or (None, None)
        note = f"90 % intervals hold {self.inside.mean():.0%}" if len(self.inside) else ""
        return Score.of(
            TOPIC, self.name, self.predicted, self.measured, self.used,
            gmae_target=gmae, mape_target=mape, note=note, exposure=exposure, kind=self.kind,
        )  # fmt: skip

    @classmethod
    def pooled(cls, name: str, parts: Sequence[Judged], used: str, kind: str = "") -> Judged:
        """All rows of several."""
        return cls(
            name,
            np.concatenate([part.predicted for part in parts]),
            np.concatenate([part.measured for part in parts]),
            np.concatenate([part.inside for part in parts]),
            used,
            kind,
        )


def judge(
    part: Measured, shown: npt.NDArray[np.bool_], models: KernelModels, name: str, used: str, kind: str = ""
) -> Judged | None:
    """The shown rows above the launch path; None where there are none."""
    at = np.nonzero(shown & (part.time_us > ABOVE_US))[0]
    if not len(at):
        return None
    batch = replace(part.batch.take(at), positions=np.arange(len(at)))
    answer = models.estimate_batch(batch)
    reading = reading_us(models, batch, answer.time_us)
    used = f"{used}, above {ABOVE_US:.0f} µs"
    return Judged.of(name, reading, part.time_us[at], answer.spread, used, kind)
