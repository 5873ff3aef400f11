"""Lookups timed from a machine's own measurements: one embedding-bag call per table.

Tables that are looked up one after the other add up, so a search over plans does too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.errors import InputError, StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.kernels.embedding.caches import detect_caches
from stepsight.kernels.embedding.cpu import PhaseModel, features, work
from stepsight.kernels.embedding.fit import fit_phase
from stepsight.kernels.embedding.lookup import TableLookup
from stepsight.kernels.embedding.model import TableCosts
from stepsight.workload.program import Kernel

FILE = "embedding.json"
PHASES = {"embedding": "forward", "embedding_backward": "backward"}
ASSUMED_CACHES = (float(32 << 10), float(1 << 20), float(32 << 20))
"""Where the system does not tell: the first levels of common server processors."""
FOLDS = 4
FORMAT = 2
"""Counts up when the kinds of work or the features change: fitted rates then mean something else."""


@dataclass(frozen=True, slots=True)
class MeasuredLookups:
    """The embedding model of a calibrated platform, by phase.

    ``caches`` are the processor's data caches in bytes, nearest first. ``in_step`` is how much
    longer the phase takes inside a step than in the benchmark.
    """

    caches: tuple[float, ...]
    phases: Mapping[str, PhaseModel]
    in_step: Mapping[str, float]

    @classmethod
    def fit(
        cls, tables: Sequence[TableLookup], times_us: Mapping[str, FloatArray], *,
        caches: Sequence[float] | None = None, groups: Sequence[int] | None = None,
    ) -> MeasuredLookups:  # fmt: skip
        """From the times of single tables, by phase; ``groups`` names which of them are alike."""
        if not tables:
            raise StepsightError("no measured lookups to fit an embedding model from")
        levels = tuple(caches or detect_caches() or ASSUMED_CACHES)
        folds = np.asarray(groups if groups is not None else range(len(tables)), dtype=np.int64) % FOLDS
        phases = {
            phase: fit_phase(*_seen(tables, levels, phase, "sgd"), np.asarray(times), folds)
            for phase, times in times_us.items()
        }
        return cls(levels, phases, {})

    def table_us(self, phase: str, tables: Sequence[TableLookup], optimizer: str = "sgd") -> FloatArray:
        """Time of each table on its own."""
        if not tables:
            return np.zeros(0)
        taken = self.phases[phase].table_us(*_seen(tables, self.caches, phase, optimizer))
        return np.asarray(taken * self.in_step.get(phase, 1.0))

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times, spread = np.zeros(len(kernels)), np.zeros(len(kernels))
        for i, kernel in enumerate(kernels):
            phase = PHASES.get(kernel.family)
            if phase is None or kernel.lookup is None:
                raise StepsightError(f"not an embedding kernel with tables: {kernel.name or kernel.family}")
            whole = self.table_us(phase, kernel.lookup.tables, kernel.lookup.optimizer).sum()
            times[i] = whole * kernel.lookup.part
            spread[i] = self.phases[phase].spread
        source = np.full(len(kernels), int(Source.MEASURED))
        return Estimates(times, source, spread)

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per-table times: nothing is fused here, so they add up as they are."""
        return TableCosts(
            self.table_us("forward", tables)[:, None], self.table_us("backward", tables, optimizer)[:, None]
        )

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """The time of a rank whose tables' costs add up to ``sums``."""
        return np.asarray(sums[..., 0])

    def backward_us(self, sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0])

    def save(self, folder: Path) -> None:
        """Write the platform folder's ``embedding.json``."""
        content = {
            "format": FORMAT,
            "caches": list(self.caches),
            "in_step": dict(self.in_step),
            "phases": {phase: model.record() for phase, model in self.phases.items()},
        }
        (folder / FILE).write_text(json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: Path) -> MeasuredLookups:
        """Read it back."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text())
            if content.get("format") != FORMAT:
                raise InputError(
                    str(path),
                    "was fitted by another version of stepsight",
                    "run calibrate on this folder with --resume: its samples are kept and fitted anew",
                )
            phases = {phase: PhaseModel.from_record(r) for phase, r in content["phases"].items()}
            return cls(tuple(content["caches"]), phases, content["in_step"])
        except FileNotFoundError:
            raise InputError(str(path), "is missing", "calibrate the platform again") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"is damaged ({error})", "calibrate the platform again") from None


def _seen(
    tables: Sequence[TableLookup], caches: Sequence[float], phase: str, optimizer: str
) -> tuple[FloatArray, FloatArray]:
    """Work and features of a phase."""
    return work(tables, caches, phase, optimizer), features(tables, caches)
