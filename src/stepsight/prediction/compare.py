"""Two predictions side by side: what changed, and where the difference went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

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


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The step times, their ratio, and the difference by category, largest first.

    The categories' differences add up to the difference of the mean rank's step. ``work_ratio`` is what a
    step of the second does over what one of the first does: tokens where both have them, else samples; None
    where that is not known.
    """

    before: Prediction
    after: Prediction
    changes: tuple[Difference, ...]
    work_ratio: float | None = None

    def __repr__(self) -> str:
        return f"<Comparison {self.before!r} with {self.after!r}: {self.speedup:.2f}× as fast>"

    @property
    def difference_us(self) -> float:
        return self.after.step_time_us - self.before.step_time_us

    @property
    def speedup(self) -> float:
        """Of steps, whatever they do: above one, the second's is shorter."""
        return self.before.step_time_us / self.after.step_time_us

    @property
    def same_work(self) -> bool:
        """Whether a step is the same work in both, as far as that is known."""
        return self.work_ratio is None or abs(self.work_ratio - 1) < 1e-9

    @property
    def throughput_ratio(self) -> float | None:
        """Above one: the second trains faster, in tokens or samples a second."""
        return None if self.work_ratio is None else self.speedup * self.work_ratio

    @property
    def other_stack(self) -> str:
        """Where the second's settings select another training stack by default, how the first's is kept."""
        a, b = self.before.setup, self.after.setup
        if a is None or b is None or not (a.recipe and b.default_recipe) or a.recipe == b.recipe:
            return ""
        return (
            f"B's settings select another training stack by default, {b.recipe}; --set-b"
            f" recipe={a.recipe} keeps A's"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that ``--json`` uses."""
        changes = [{**msgspec.to_builtins(c), "difference_us": c.difference_us} for c in self.changes]
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "difference_us": self.difference_us,
            "speedup": self.speedup,
            "work_ratio": self.work_ratio,
            "throughput_ratio": self.throughput_ratio,
            "changes": changes,
        }


def compare(before: Prediction, after: Prediction, *, work_ratio: float | None = None) -> Comparison:
    """Line the two breakdowns up. ``work_ratio`` is for predictions that do not state their samples."""
    if after.step_time_us <= 0:
        raise StepsightError("the second step takes no time at all: nothing is left of it to compare")
    names = dict.fromkeys((*before.breakdown_us, *after.breakdown_us))
    changes = [
        Difference(name, before.breakdown_us.get(name, 0.0), after.breakdown_us.get(name, 0.0))
        for name in names
    ]
    ordered = tuple(sorted(changes, key=lambda c: -abs(c.difference_us)))
    return Comparison(before, after, ordered, work_ratio or _work_ratio(before, after))


def _work_ratio(before: Prediction, after: Prediction) -> float | None:
    a, b = before.setup, after.setup
    if a is None or b is None:
        return None
    if a.tokens and b.tokens:
        return b.tokens / a.tokens
    return b.samples / a.samples if a.samples and b.samples else None
