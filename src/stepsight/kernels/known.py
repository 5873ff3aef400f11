"""Kernels that were timed before: the layers of a thousand configurations repeat their shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepsight.estimate import Estimate
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel


@dataclass(slots=True)
class KnownKernels:
    """Asks the models of one GPU once for every distinct kernel."""

    models: KernelModels
    _known: dict[Kernel, Estimate] = field(default_factory=dict, repr=False)

    def estimate(self, kernels: Iterable[Kernel]) -> dict[Kernel, Estimate]:
        """The times of these kernels (and of all asked for before)."""
        fresh = [k for k in dict.fromkeys(kernels) if k not in self._known]
        if fresh:
            answers = self.models.estimate(fresh)
            self._known.update((kernel, answers[i]) for i, kernel in enumerate(fresh))
        return self._known
