"""Collectives that were timed before: configurations of one job repeat their groups and messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepsight.collectives.dispatch import dispatched
from stepsight.estimate import Estimate
from stepsight.program.job import Copies

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels
    from stepsight.collectives.site import SiteCollectives


@dataclass(slots=True)
class KnownCollectives:
    """Asks the models of an axis once for every distinct message and group."""

    models_of: Callable[[str], CollectiveModels | SiteCollectives]
    _known: dict[tuple[str, str, float, tuple[int, ...], Copies | None], Estimate] = field(
        default_factory=dict, repr=False
    )

    def estimate(
        self, axis: str, kind: str, bytes_: float, ranks: tuple[int, ...], copies: Copies | None = None
    ) -> Estimate:
        key = (axis, kind, bytes_, ranks, copies)
        if key not in self._known:
            models = self.models_of(axis)
            self._known[key] = (
                models.estimate(kind, [bytes_], ranks)[0]
                if copies is None
                else dispatched(models, bytes_, copies, ranks)
            )
        return self._known[key]
