"""Collectives that were timed before: configurations of one job repeat their groups and messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepsight.estimate import Estimate

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels
    from stepsight.collectives.site import SiteCollectives


@dataclass(slots=True)
class KnownCollectives:
    """Asks the models of an axis once for every distinct message and group."""

    models_of: Callable[[str], CollectiveModels | SiteCollectives]
    _known: dict[tuple[str, str, float, tuple[int, ...]], Estimate] = field(default_factory=dict, repr=False)

    def estimate(self, axis: str, kind: str, bytes_: float, ranks: tuple[int, ...]) -> Estimate:
        key = (axis, kind, bytes_, ranks)
        if key not in self._known:
            self._known[key] = self.models_of(axis).estimate(kind, [bytes_], ranks)[0]
        return self._known[key]
