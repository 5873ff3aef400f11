"""Pool what every run says: the file of constants that ships with `stepsight.trace`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from stepsight.fitting.traces.figures import run_figures
from stepsight.fitting.traces.runs import ScoredRun, scored_runs
from stepsight.trace.fitted import (
    MEAN_LOG,
    ROOT_MEAN_SQUARE,
    SPREAD,
    Fitted,
    FittedConstant,
    RunFigure,
    source_of,
)

POOLS = {
    "typical_call": MEAN_LOG,
    "longest_call": MEAN_LOG,
    "individual_spread": ROOT_MEAN_SQUARE,
    "late_spread": ROOT_MEAN_SQUARE,
}
"""How figures are pooled; those of guessed sizes as spreads."""


def fit_constants(folder: Path, tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The constants by all training runs under a folder of traces."""
    return pooled(scored_runs(folder), tell)


def pooled(runs: Iterable[ScoredRun], tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The constants by some runs."""
    figures: dict[str, list[RunFigure]] = defaultdict(list)
    count = 0
    for scored in runs:
        if scored.left_out:
            continue
        count += 1
        said = run_figures(scored)
        tell(f"{scored.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(said.items())))
        for name, value in said.items():
            figures[name].append(RunFigure(source_of(scored.host), round(value, 4)))
    constants = {
        name: FittedConstant(POOLS.get(name, SPREAD), tuple(sorted(found, key=lambda f: (f.source, f.value))))
        for name, found in sorted(figures.items())
    }
    return Fitted(f"profiler traces of {count} training runs, one figure a run", constants)
