"""A CPU's lookup model against lookups measured on it, on table sets that took no part in the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepsight.calibrate.lookups.fit import fit_samples, operator_of, table_sets
from stepsight.calibrate.lookups.microbench import PHASES, LookupSample
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.score import BLIND, Score, gmae
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import EMBEDDING_BAG, Lookup, TableLookup

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

    def seen(lookup: Lookup) -> Lookup:
        known = [without_distribution(t) if blind else t for t in lookup.tables]
        return replace(lookup, tables=tuple(known))

    inside = [s for s, n in zip(samples, sets.tolist(), strict=True) if n not in left]
    outside = [s for s, n in zip(samples, sets.tolist(), strict=True) if n in left]
    model = fit_samples(inside, caches, np.array([n for n in sets.tolist() if n not in left]), seen)
    predicted = {
        phase: np.array([model.lookup_us(phase, seen(s.lookup).tables, s.lookup.optimizer) for s in outside])
        for phase in PHASES
    }
    totals = np.array([s.total_us() for s in outside])
    return HeldOut(predicted, {phase: totals[:, i] for i, phase in enumerate(PHASES)})


def repeat_error(samples: Sequence[LookupSample]) -> dict[str, float]:
    """How well a measurement repeats: GMAE between two passes over the same lookups, in other memory."""
    passes = [np.array([s.of_pass(number).total_us() for s in samples]) for number in (0, 1)]
    return {phase: gmae(passes[0][:, i], passes[1][:, i]) for i, phase in enumerate(PHASES)}


def cpu_scores(samples: Sequence[LookupSample], caches: Sequence[float]) -> list[Score]:
    """Both phases, with and without the index distribution, next to the repeat error."""
    if len(samples) < FEWEST:
        return []
    noise = repeat_error(samples)
    known, blind = held_out(samples, caches), held_out(samples, caches, blind=True)
    operator = operator_of(samples)
    named = "CPU" if operator == EMBEDDING_BAG else f"CPU {operator} {samples[0].lookup.optimizer}"
    used = f"20 % of {len(np.unique(table_sets(samples)))} table sets held out"
    scores = []
    for phase in PHASES:
        bar = max(BAR, noise[phase])
        scores.append(
            Score.of("embedding", f"{named} {phase}", known.predicted[phase], known.measured[phase], used,
                     gmae_target=bar, note=f"repeat error {noise[phase]:.1%}", exposure=BLIND),
        )  # fmt: skip
        scores.append(
            Score.of("embedding", f"{named} {phase}, without the distribution", blind.predicted[phase],
                     blind.measured[phase], used, exposure=BLIND),
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
