"""A CPU's lookup model of one operator, from its measured tables or calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepsight.calibrate.lookups.drift import fit_steady
from stepsight.calibrate.lookups.phases import Calls
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.cpu.caches import detect_caches
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups, phase_name
from stepsight.kernels.embedding.cpu.time import features
from stepsight.kernels.embedding.cpu.work import work
from stepsight.tables.lookup import EMBEDDING_BAG, TableLookup

ASSUMED_CACHES = (float(32 << 10), float(1 << 20), float(32 << 20))
"""Where the system does not tell: the first levels of common server processors."""
FOLDS = 4


def fit_lookups(
    tables: Sequence[TableLookup], times_us: Mapping[str, FloatArray], *,
    caches: Sequence[float] | None = None, groups: Sequence[int] | None = None,
    operator: str = EMBEDDING_BAG, optimizer: str = "sgd", calls: Calls | None = None,
    rounds: Sequence[int] | None = None,
) -> MeasuredLookups:  # fmt: skip
    """From the times of single tables, or of ``calls`` for many tables, by phase.

    ``groups`` names which of the calls are alike, ``rounds`` which were measured in the same minute.
    """
    if not tables:
        raise StepsightError("no measured lookups to fit an embedding model from")
    levels = tuple(caches or detect_caches() or ASSUMED_CACHES)
    phases = {}
    for phase, times in times_us.items():
        seen = work(tables, levels, phase, optimizer, operator), features(tables, levels)
        folds = np.asarray(groups if groups is not None else range(len(times)), dtype=np.int64) % FOLDS
        together = np.asarray(rounds if rounds is not None else [0] * len(times), dtype=np.int64)
        phases[phase_name(phase, operator, optimizer)] = fit_steady(
            *seen, np.asarray(times), folds, together, calls
        )
    return MeasuredLookups(levels, phases, {}, operator)
