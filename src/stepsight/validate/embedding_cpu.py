"""A CPU's lookup model against lookups measured on it, on table sets that took no part in the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import TableLookup
from stepsight.kernels.embedding.measured import MeasuredLookups
from stepsight.kernels.embedding.microbench import PHASES, LookupSample
from stepsight.validate.score import Score, gmae

BAR = 0.05
HELD_OUT = 5
"""One table set in five takes no part in the fit."""
SPLIT_SEED = 7
FEWEST = 20


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions for lookups whose table sets the fit never saw: predicted and measured by phase."""

    predicted: dict[str, FloatArray]
    measured: dict[str, FloatArray]


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


def without_distribution(table: TableLookup) -> TableLookup:
    """The same table as a model sees it that does not know which rows are asked for."""
    return replace(table, indices=IndexDistribution.uniform())


def held_out(samples: Sequence[LookupSample], caches: Sequence[float], *, blind: bool = False) -> HeldOut:
    """Fit on four table sets in five, predict the others. ``blind``: without the index distribution."""
    sets = table_sets(samples)
    numbers = np.unique(sets)
    left = set(
        np.random.default_rng(SPLIT_SEED).permutation(numbers)[: max(len(numbers) // HELD_OUT, 1)].tolist()
    )

    def seen(tables: Sequence[TableLookup]) -> list[TableLookup]:
        return [without_distribution(t) for t in tables] if blind else list(tables)

    inside = [(s, n) for s, n in zip(samples, sets.tolist(), strict=True) if n not in left]
    outside = [s for s, n in zip(samples, sets.tolist(), strict=True) if n in left]
    times = np.concatenate([s.table_us() for s, _ in inside], axis=1)
    model = MeasuredLookups.fit(
        [t for s, _ in inside for t in seen(s.lookup.tables)],
        {phase: times[i] for i, phase in enumerate(PHASES)},
        caches=caches,
        groups=[n for s, n in inside for _ in s.lookup.tables],
    )

    def lookup_us(phase: str, tables: list[TableLookup]) -> float:
        return float(model.table_us(phase, tables).sum())

    predicted = {
        phase: np.array([lookup_us(phase, seen(s.lookup.tables)) for s in outside]) for phase in PHASES
    }
    totals = np.array([s.total_us() for s in outside])
    return HeldOut(predicted, {phase: totals[:, i] for i, phase in enumerate(PHASES)})


def repeat_error(samples: Sequence[LookupSample]) -> dict[str, float]:
    """How well a measurement repeats: GMAE between two passes over the same lookups, in other memory."""
    passes = [np.array([s.of_pass(number).total_us() for s in samples]) for number in (0, 1)]
    return {phase: gmae(passes[0][:, i], passes[1][:, i]) for i, phase in enumerate(PHASES)}


def cpu_scores(samples: Sequence[LookupSample], caches: Sequence[float]) -> list[Score]:
    """Both phases, with and without the index distribution, beside the repeat error."""
    if len(samples) < FEWEST:
        return []
    noise = repeat_error(samples)
    known, blind = held_out(samples, caches), held_out(samples, caches, blind=True)
    used = f"20 % of {len(np.unique(table_sets(samples)))} table sets held out"
    scores = []
    for phase in PHASES:
        bar = max(BAR, noise[phase])
        scores.append(
            Score.of("embedding", f"CPU {phase}", known.predicted[phase], known.measured[phase], used,
                     gmae_target=bar, note=f"repeat error {noise[phase]:.1%}"),
        )  # fmt: skip
        scores.append(
            Score.of("embedding", f"CPU {phase}, without the distribution", blind.predicted[phase],
                     blind.measured[phase], used),
        )  # fmt: skip
    return scores


def draw_held_out(samples: Sequence[LookupSample], caches: Sequence[float], path: Path) -> None:
    """Predicted over measured of held-out lookups, with and without the index distribution."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise StepsightError("--plot needs matplotlib: pip install 'stepsight[plot]'") from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for blind, colour, label in ((True, "tab:orange", "without"), (False, "tab:blue", "with")):
        found = held_out(samples, caches, blind=blind)
        for axis, phase in zip(axes, PHASES, strict=True):
            measured = found.measured[phase]
            error = gmae(found.predicted[phase], measured)
            axis.scatter(measured / 1e3, found.predicted[phase] / measured, s=12, c=colour,
                         label=f"{label} the distribution: GMAE {error:.1%}")  # fmt: skip
            axis.set(title=phase, xlabel="measured, ms", xscale="log", yscale="log")
            axis.axhline(1.0, c="grey", lw=0.8)
            axis.legend()
    axes[0].set_ylabel("predicted / measured")
    figure.savefig(path, dpi=150)
