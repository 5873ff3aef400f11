"""Constants of traces by all training runs: figures of runs pooled, every source counting once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import log, sqrt
from pathlib import Path

import click
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.constants import write
from lab.fit.traces.figures import run_figures
from lab.fit.traces.left_out import Refits, left_out_prediction, source_of
from lab.fit.traces.runs import ScoredRun, scored_runs
from stepsight.constants import area
from stepsight.prediction.answer import INTERVAL_SIGMAS, METHOD_SPREAD

C = area("traces")

DIGITS = 4
_ONE_SIGMA, _NINE_IN_TEN = 0.6827, 0.9
"""Shares of a normal distribution within one standard deviation, and of what an interval is to hold."""
Figures = Mapping[str, list[float]]
"""What the runs of each source say of one constant."""


def _median(figures: Figures) -> float:
    return float(np.median([np.median(values) for values in figures.values()]))


def _root_mean_square(figures: Figures) -> float:
    return float(np.sqrt(np.mean([np.mean(np.square(values)) for values in figures.values()])))


def _quantile(share: float) -> Callable[[Figures], float]:
    """What a share of the figures, taken without their signs, does not exceed; each source weighs one."""

    def pool(figures: Figures) -> float:
        weighed = sorted((abs(value), 1 / len(values)) for values in figures.values() for value in values)
        total = np.cumsum([weight for _, weight in weighed])
        return weighed[int(np.searchsorted(total, share * total[-1] - 1e-9))][0]

    return pool


POOLS: Mapping[str, Callable[[Figures], float]] = {
    "TYPICAL_CALL": _median, "LONGEST_CALL": _median, "INDIVIDUAL_SPREAD": _root_mean_square,
    "LATE_SPREAD": _root_mean_square, "COUNTED_SPREAD": _quantile(_ONE_SIGMA),
    "MODELS_SPREAD": _quantile(_NINE_IN_TEN),
}  # fmt: skip
"""How the figures of a constant become its value."""


def fit_constants(folder: Path, note: Callable[[str], None] = lambda _: None) -> dict[str, tuple[float, int]]:
    """Value and number of runs of every constant that runs show."""
    return pooled(scored_runs(folder), note)


def pooled(
    runs: Iterable[ScoredRun], note: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[float, int]]:
    """The constants by some runs; those that fewer than two sources show are left out."""
    refits = Refits.from_tables()
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for scored in runs:
        if scored.left_out:
            continue
        found = {**run_figures(scored), "MODELS_SPREAD": missing_spread(scored, refits)}
        note(f"{scored.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(found.items())))
        for name, value in found.items():
            figures[name][source_of(scored.host)].append(value)
    return {
        name: (round(POOLS[name](by_source), DIGITS), sum(map(len, by_source.values())))
        for name, by_source in sorted(figures.items())
        if len(by_source) > 1
    }


def missing_spread(scored: ScoredRun, refits: Refits) -> float:
    """The least spread, besides those of its parts, with which the interval holds the measured step."""
    answer = left_out_prediction(scored.run, scored.host, refits)
    sigma = log(answer.high_us / answer.low_us) / 2 / INTERVAL_SIGMAS
    parts = sigma**2 - max(METHOD_SPREAD, C.MODELS_SPREAD) ** 2
    needed = (log(scored.measured_us / answer.step_time_us) / INTERVAL_SIGMAS) ** 2
    return sqrt(max(needed - parts, 0.0))


@click.command("traces")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables, or of traces.")
@click.option("--dry-run", is_flag=True, help="Print the values and write nothing.")
def command(data: Path | None, dry_run: bool) -> None:
    """Spreads of counted sizes, host times and steps, and how calls of collectives differ."""
    folder = data_folder(data)
    inside = folder / "traces" if (folder / "traces").is_dir() else folder
    entries = dict(area("traces").entries)
    for name, (value, runs) in fit_constants(inside, lambda line: click.echo(line, err=True)).items():
        click.echo(f"{name}: {entries[name].value} → {value} ({runs} runs)")
        entries[name] = replace(entries[name], value=value, runs=runs)
    if not dry_run:
        click.echo(f"wrote {write('traces', entries)}")
