"""The lookup models of a calibrated platform: one for each operator that was measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.errors import InputError, StepsightError
from stepsight.estimate import Estimates
from stepsight.kernels.embedding.cpu.measured import FILES, MeasuredLookups
from stepsight.program.job import Kernel
from stepsight.tables.lookup import EMBEDDING_BAG


@dataclass(frozen=True, slots=True)
class CalibratedLookups:
    """Answers for every kernel with the model of the operator that its lookup names."""

    folder: Path
    models: Mapping[str, MeasuredLookups]

    @classmethod
    def load(cls, folder: Path) -> CalibratedLookups:
        """All operators' models of a platform's folder."""
        found = [operator for operator, name in FILES.items() if (folder / name).is_file()]
        return cls(folder, {operator: MeasuredLookups.load(folder, operator) for operator in found})

    def of(self, operator: str) -> MeasuredLookups:
        """The operator's model; for a lookup that names none, that of ``embedding_bag`` or the only one."""
        if operator in self.models:
            return self.models[operator]
        if operator:
            raise InputError(
                str(self.folder),
                f"was not calibrated for lookups with {operator} (only with {', '.join(self.models)})",
                f"python -m lab score embedding --operator {operator} --samples FILE --measure 600, then "
                f"python -m lab fit embedding --samples FILE --platform {self.folder}",
            )
        return self.models.get(EMBEDDING_BAG) or next(iter(self.models.values()))

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        asked: dict[str, list[int]] = {}
        for i, kernel in enumerate(kernels):
            if kernel.lookup is None:
                raise StepsightError(f"not an embedding kernel with tables: {kernel.label}")
            asked.setdefault(kernel.lookup.operator, []).append(i)
        times, spread = np.zeros(len(kernels)), np.zeros(len(kernels))
        source = np.zeros(len(kernels), dtype=np.int64)
        for operator, positions in asked.items():
            answer = self.of(operator).estimate([kernels[i] for i in positions])
            times[positions], source[positions] = answer.time_us, answer.source
            spread[positions] = answer.spread
        return Estimates(times, source, spread)
