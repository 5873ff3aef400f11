"""Lookups timed from a machine's own measurements of one operator.

Tables that are looked up one after the other add up, so a search over plans does too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.documents import write_whole
from stepsight.errors import InputError, StepsightError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.inputs import read_figures
from stepsight.kernels.embedding.cpu.work import PhaseModel, features, work
from stepsight.kernels.embedding.model import TableCosts
from stepsight.program.job import Kernel
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, FBGEMM_OPTIMIZERS, TableLookup

FILES = {EMBEDDING_BAG: "embedding.json", FBGEMM: "embedding_fbgemm.json"}
"""Where a platform's folder keeps the model of each operator."""
PHASES = {"embedding": "forward", "embedding_backward": "backward"}
FORMAT = 2
"""Counts up when the kinds of work or the features change: fitted rates then mean something else."""
_REFIT = {
    EMBEDDING_BAG: "run calibrate on this folder with --resume: its samples are kept and fitted anew",
    FBGEMM: "run calibrate --stack torchrec on this folder with --resume: its samples are fitted anew",
}


@dataclass(frozen=True, slots=True)
class MeasuredLookups:
    """The embedding model of a calibrated platform for one operator, by phase.

    ``caches`` are the processor's data caches in bytes, nearest first. ``in_step`` is how much
    longer the phase takes inside a step than in the benchmark. FBGEMM has other code for each
    optimizer, so there "backward sgd" is a phase of its own.
    """

    caches: tuple[float, ...]
    phases: Mapping[str, PhaseModel]
    in_step: Mapping[str, float]
    operator: str = EMBEDDING_BAG

    def table_us(self, phase: str, tables: Sequence[TableLookup], optimizer: str = "sgd") -> FloatArray:
        """Time of each table on its own, without the start of a call that serves many."""
        if not tables:
            return np.zeros(0)
        seen = work(tables, self.caches, phase, optimizer, self.operator), features(tables, self.caches)
        taken = self._phase(phase, optimizer).table_us(*seen)
        return np.asarray(taken * self.in_step.get(phase, 1.0))

    def lookup_us(self, phase: str, tables: Sequence[TableLookup], optimizer: str = "sgd") -> float:
        """Time of all tables together."""
        start_us = self._phase(phase, optimizer).start_us if tables else 0.0
        return float(self.table_us(phase, tables, optimizer).sum() + start_us)

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Kernel times of ``embedding`` and ``embedding_backward`` kernels."""
        times, spread = np.zeros(len(kernels)), np.zeros(len(kernels))
        for i, kernel in enumerate(kernels):
            phase, lookup = PHASES.get(kernel.family), kernel.lookup
            if phase is None or lookup is None:
                raise StepsightError(f"not an embedding kernel with tables: {kernel.label}")
            times[i] = self.lookup_us(phase, lookup.tables, lookup.optimizer) * lookup.part
            spread[i] = self._phase(phase, lookup.optimizer).spread
        source = np.full(len(kernels), int(Source.MEASURED))
        return Estimates(times, source, spread)

    def table_costs(
        self, tables: Sequence[TableLookup], *, optimizer: str = "sgd", together: int | None = None
    ) -> TableCosts:
        """Per table: its time, the start of the call that it is part of, and one for itself."""
        costs = []
        for phase in PHASES.values():
            start_us = np.full(len(tables), self._phase(phase, optimizer).start_us)
            costs.append(
                np.stack([self.table_us(phase, tables, optimizer), start_us, np.ones(len(tables))], 1)
            )
        return TableCosts(*costs)

    @property
    def concave(self) -> tuple[int, ...]:
        """Columns whose first part costs most: none, times add up."""
        return ()

    def forward_us(self, sums: FloatArray) -> FloatArray:
        """The time of a rank whose tables' costs add up to ``sums``: a call starts once for them all."""
        return np.asarray(sums[..., 0] + sums[..., 1] / np.maximum(sums[..., 2], 1.0))

    def backward_us(self, sums: FloatArray) -> FloatArray:
        return self.forward_us(sums)

    def _phase(self, phase: str, optimizer: str) -> PhaseModel:
        name = phase_name(phase, self.operator, optimizer)
        if name not in self.phases:
            known = ", ".join(sorted(key.split()[1] for key in self.phases if key.startswith(f"{phase} ")))
            fix = f"calibrate measures {known}; use one of these"
            if optimizer not in FBGEMM_OPTIMIZERS:
                fix = f"FBGEMM has none on a CPU; use one of {', '.join(FBGEMM_OPTIMIZERS)}"
            raise InputError(
                f"a {phase} with {self.operator} and {optimizer}",
                f"was not measured for this platform (only {known})",
                fix,
            )
        return self.phases[name]

    def save(self, folder: Path) -> Path:
        """Write the operator's file in a platform's folder."""
        content = {
            "format": FORMAT,
            "caches": list(self.caches),
            "in_step": dict(self.in_step),
            "phases": {phase: model.record() for phase, model in self.phases.items()},
        }
        path = folder / FILES[self.operator]
        write_whole(path, json.dumps(content) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path, operator: str = EMBEDDING_BAG) -> MeasuredLookups:
        """Read it back."""
        path = folder / FILES[operator]
        try:
            content = read_figures(path, "calibrate the platform again")
            if content.get("format") != FORMAT:
                raise InputError(str(path), "was fitted by another version of stepsight", _REFIT[operator])
            phases = {phase: PhaseModel.from_record(r) for phase, r in content["phases"].items()}
            return cls(tuple(content["caches"]), phases, content["in_step"], operator)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(str(path), f"is damaged ({error})", "calibrate the platform again") from None


def phase_name(phase: str, operator: str, optimizer: str) -> str:
    """Of the phase's own code: FBGEMM's backward is written for each optimizer."""
    return f"{phase} {optimizer}" if operator == FBGEMM and phase == "backward" else phase


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
                f"calibrate it with --stack {'torchrec' if operator == FBGEMM else 'eager'}",
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
