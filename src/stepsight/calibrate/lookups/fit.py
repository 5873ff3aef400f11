"""A CPU's lookup model from samples that were measured on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepsight.calibrate.lookups.microbench import PHASES, LookupSample
from stepsight.calibrate.lookups.phases import Calls
from stepsight.calibrate.lookups.table_fit import fit_lookups
from stepsight.errors import StepsightError
from stepsight.estimate import IntArray
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.tables.lookup import EMBEDDING_BAG, Lookup

Seen = Callable[[Lookup], Lookup]


def operator_of(samples: Sequence[LookupSample]) -> str:
    """The operator that all of them were measured with."""
    operators = {s.lookup.operator or EMBEDDING_BAG for s in samples}
    if len(operators) > 1:
        raise StepsightError(
            f"samples of several operators ({', '.join(sorted(operators))}): fit one at a time"
        )
    return operators.pop() if operators else EMBEDDING_BAG


def table_sets(samples: Sequence[LookupSample]) -> IntArray:
    """Which samples look up the same tables (whatever the batch): a number for each."""
    numbers: dict[tuple[tuple[object, ...], ...], int] = {}
    return np.array(
        [
            numbers.setdefault(
                tuple((t.rows, t.dim, t.pooling, t.indices) for t in s.lookup.tables), len(numbers)
            )
            for s in samples
        ],
        dtype=np.int64,
    )  # fmt: skip


def fit_samples(
    samples: Sequence[LookupSample],
    caches: Sequence[float],
    sets: IntArray,
    seen: Seen = lambda lookup: lookup,
) -> MeasuredLookups:
    """The model of the samples' operator: one forward, and a backward for each optimizer.

    ``sets`` numbers the `table_sets`, which are left out in turn to choose; ``seen`` is what the
    model may know of a lookup.
    """
    operator = operator_of(samples)
    models = []
    for optimizer in dict.fromkeys(s.lookup.optimizer for s in samples):
        mine = [i for i, s in enumerate(samples) if s.lookup.optimizer == optimizer]
        models.append(_fit([samples[i] for i in mine], caches, sets[mine], seen, operator))
    forward = models[0] if len(models) == 1 else _fit(samples, caches, sets, seen, operator)
    phases = {name: model for fitted in models for name, model in fitted.phases.items()}
    return replace(forward, phases=phases | {"forward": forward.phases["forward"]})


def _fit(
    samples: Sequence[LookupSample], caches: Sequence[float], sets: IntArray, seen: Seen, operator: str
) -> MeasuredLookups:
    times = np.concatenate([s.call_us() for s in samples], axis=1)
    own_calls = operator == EMBEDDING_BAG
    return fit_lookups(
        [t for s in samples for t in seen(s.lookup).tables],
        {phase: times[i] for i, phase in enumerate(PHASES)},
        caches=caches,
        groups=[number for s, number in zip(samples, sets.tolist(), strict=True) for _ in s.call_us()[0]],
        operator=operator,
        optimizer=samples[0].lookup.optimizer,
        calls=None if own_calls else Calls.of([len(s.lookup.tables) for s in samples]),
    )
