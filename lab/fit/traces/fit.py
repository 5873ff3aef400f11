"""Pool what every run says: the file of constants that ships with `stepsight.trace`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.fit.traces.figures import run_figures
from lab.fit.traces.left_out import Refits
from lab.fit.traces.residuals import missing_spread
from lab.fit.traces.runs import ScoredRun, scored_runs
from stepsight.trace.fitted import (
    MEDIAN,
    NINETY,
    ROOT_MEAN_SQUARE,
    SPREAD,
    Fitted,
    FittedConstant,
    RunFigure,
    source_of,
)

POOLS = {
    "typical_call": MEDIAN,
    "longest_call": MEDIAN,
    "individual_spread": ROOT_MEAN_SQUARE,
    "late_spread": ROOT_MEAN_SQUARE,
}
"""How figures are pooled; those of guessed sizes as spreads."""


RESIDUAL = "models_spread"


def fit_constants(folder: Path, tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The constants by all training runs under a folder of traces."""
    return pooled(scored_runs(folder), tell)


def with_residuals(fitted: Fitted, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The constants with what predictions by them miss, each run's own source left out.

    ``fitted`` must be what ships by now: predictions are made with it.
    """
    refits, figures = Refits.from_tables(), []
    for scored in scored_runs(folder):
        if not scored.left_out:
            missing = missing_spread(scored, refits)
            tell(f"{scored.name}: {RESIDUAL} {missing:.3f}")
            figures.append(RunFigure(source_of(scored.host), round(missing, 4)))
    found = FittedConstant(NINETY, tuple(sorted(figures, key=lambda f: (f.source, f.value))))
    return Fitted(fitted.provenance, {**fitted.constants, RESIDUAL: found})


def pooled(runs: Iterable[ScoredRun], tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The constants by some runs."""
    figures: dict[str, list[RunFigure]] = defaultdict(list)
    count = 0
    for scored in runs:
        if scored.left_out:
            continue
        count += 1
        of_run = run_figures(scored)
        tell(f"{scored.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(of_run.items())))
        for name, value in of_run.items():
            figures[name].append(RunFigure(source_of(scored.host), round(value, 4)))
    constants = {
        name: FittedConstant(POOLS.get(name, SPREAD), tuple(sorted(found, key=lambda f: (f.source, f.value))))
        for name, found in sorted(figures.items())
    }
    return Fitted(f"profiler traces of {count} training runs, one figure a run", constants)
