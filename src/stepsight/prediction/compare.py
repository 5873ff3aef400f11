"""Two predictions side by side: what changed, and where the difference went."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.errors import StepsightError
from stepsight.prediction.answer import Prediction


@dataclass(frozen=True, slots=True)
class Difference:
    """One category's time in both predictions."""

    category: str
    before_us: float
    after_us: float

    @property
    def difference_us(self) -> float:
        return self.after_us - self.before_us


@dataclass(frozen=True, slots=True)
class Comparison:
    """The step times, their ratio, and the difference by category, largest first.

    The categories' differences add up to the difference of the mean rank's step.
    """

    before: Prediction
    after: Prediction
    changes: tuple[Difference, ...]

    @property
    def difference_us(self) -> float:
        return self.after.step_us - self.before.step_us

    @property
    def speedup(self) -> float:
        """Above one: the second is faster."""
        return self.before.step_us / self.after.step_us


def compare(before: Prediction, after: Prediction) -> Comparison:
    """Line the two breakdowns up."""
    if after.step_us <= 0:
        raise StepsightError("the second step takes no time at all: nothing is left of it to compare")
    names = dict.fromkeys((*before.breakdown_us, *after.breakdown_us))
    changes = [
        Difference(name, before.breakdown_us.get(name, 0.0), after.breakdown_us.get(name, 0.0))
        for name in names
    ]
    return Comparison(before, after, tuple(sorted(changes, key=lambda c: -abs(c.difference_us))))
