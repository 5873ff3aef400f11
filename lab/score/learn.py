"""``python -m lab score learn``: error against the number of a source's own runs that are learned from.

Every row is asked as a user asks it (what the row states, and the recipe's name; no figures of its cluster).
k runs are drawn at random, their factors learned, and other rows of the source predicted. ``--clock`` asks
the same rows on platforms whose tensor cores are described faster than they are: something to learn.
``--no-recipe`` leaves the recipe's name out. Captured steps take part that ``lab score capture`` kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import click
import numpy as np

from lab.datasets.captured_steps import MeasuredStep, read_steps
from lab.datasets.folder import data_folder
from lab.datasets.llm.case import Case, merged
from lab.datasets.llm.files import all_cases
from lab.score.capture.steps import kept
from lab.score.capture.topic import KEPT
from lab.score.frame import COVERAGE, show
from stepsight.capturing.step import load_step
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.learn.lesson import DRAWS, CurvePoint, curve
from stepsight.prediction.learn.response import AskedStep, ask
from stepsight.prediction.learn.runs import Run, Stacks
from stepsight.score import CHOSEN, Score
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.workload import LanguageWorkload

TOPIC = "learn"
FEWEST_ROWS, MOST_ROWS, MOST_SCORED = 20, 120, 40
"""``MOST_ROWS`` of a source are taken, at random."""
HIGH_ERROR = 0.10
"""Sources above this without runs are to lose `LESS` of it."""
LESS = {3: 0.40, 10: 0.55}
WORSE = 0.005


def sources(
    data: Path, wanted: Sequence[str] = (), *, clock: float = 1.0, recipe: bool = True
) -> Iterator[tuple[str, list[Run]]]:  # fmt: skip
    """Runs by source, those with enough of them."""
    by_source: dict[str, list[Case]] = {}
    for _, cases in all_cases(data):
        for case in cases:
            if case.asked is None or case.measured_ms is None or case.slow:
                continue
            for name in _names(case):
                if not wanted or any(text in name for text in wanted):
                    by_source.setdefault(name, []).append(case)
    for name, cases in by_source.items():
        order = np.random.default_rng(0).permutation(len(cases))[:MOST_ROWS]
        rows = [run for i in sorted(order.tolist()) if (run := _run(cases[i], clock, recipe)) is not None]
        if len(rows) >= FEWEST_ROWS:
            yield name, rows


def captured(data: Path, keep: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[str, list[Run]]]:
    """The same of captured steps, those that are kept."""
    by_file: dict[str, list[MeasuredStep]] = {}
    for row in read_steps(data):
        if kept(row, keep).is_file() and (not wanted or any(text in row.file for text in wanted)):
            by_file.setdefault(row.file, []).append(row)
    for name, steps in by_file.items():
        if len(steps) >= FEWEST_ROWS:
            order = np.random.default_rng(0).permutation(len(steps))[:MOST_ROWS]
            yield name, [_captured_run(steps[i], keep) for i in sorted(order.tolist())]


def _captured_run(row: MeasuredStep, keep: Path) -> Run:
    step = ask(load_step(kept(row, keep)), _platform(row.platform, ()))
    return Run.of(row.name, step, 1e3 * row.step_ms)


def _names(case: Case) -> tuple[str, ...]:
    """The sources that a case counts for. The sweep's pipelines polled for messages with sleeps of 0.1 s, by
    its own account, so its runs without a pipeline also stand by themselves."""
    parallel = (case.stated or {}).get("parallel", {})
    if "sweep" in case.source and parallel.get("pipeline", 1) == 1:
        return (case.source, f"{case.source}: no pipeline")
    return (case.source,)


@cache
def _platform(name: str, overrides: tuple[str, ...]) -> Platform:
    return load_platform(name, overrides)


def _run(case: Case, clock: float, recipe: bool) -> Run | None:
    document = case.asked if recipe else merged({"kind": "transformer"}, case.stated or {})
    try:
        workload = parse_workload(document or {}, case.name)
        asked = ask(workload, _platform(case.platform, case.overrides))
    except StepsightError:
        return None
    if not isinstance(workload, LanguageWorkload):
        return None
    measured_us = 1e3 * (case.measured_ms or 0.0)
    stacks = Stacks.of(workload, _platform(case.platform, case.overrides)) if clock == 1.0 else None
    return Run.of(case.name, asked, measured_us * _slower(asked, clock), stacks=stacks)


def _slower(asked: AskedStep, clock: float) -> float:
    """What a measured step would take on tensor cores that are this much slower."""
    if clock == 1.0:
        return 1.0
    usual, slow = asked.response.steps_us([{}, {"gemm": clock, "attention": clock}])
    return float(slow / usual)


def lines(name: str, rows: int, points: Sequence[CurvePoint]) -> list[Score]:
    """One line for each number of runs, with its bars."""
    first = points[0].mape
    found = []
    for point in points:
        bars, met = [], True
        if point.runs in LESS and first > HIGH_ERROR:
            bars.append(f"error {LESS[point.runs]:.0%} less than without runs")
            met &= point.mape <= (1 - LESS[point.runs]) * first
        if point.runs:
            bars.append("at most half a point worse")
            met &= point.mape <= first + WORSE
        bars.append(f"{COVERAGE[0]:.0%}–{COVERAGE[1]:.0%} inside")
        met &= COVERAGE[0] <= round(point.inside, 3) <= COVERAGE[1]
        found.append(
            Score(
                TOPIC, f"{name}, {point.runs} runs learned", rows, point.mape, point.mape,
                "rows not learned from, not slow", ", ".join(bars), met, f"{point.inside:.0%} inside",
                exposure=CHOSEN,
            )
        )  # fmt: skip
    return found


def curve_of(rows: Sequence[Run], draws: int = DRAWS) -> tuple[CurvePoint, ...]:
    """The curve with at least ten runs left to score."""
    return tuple(
        p for p in curve(rows, draws=draws, seed=1, most_scored=MOST_SCORED) if p.runs <= len(rows) - 10
    )


def scores(data: Path) -> list[Score]:
    """The lines of the scoreboard."""
    found = chain(sources(data), captured(data, KEPT))
    return [line for name, rows in found for line in lines(name, len(rows), curve_of(rows))]


@click.command(TOPIC, help="Error against the number of own runs learned from.")
@click.argument("wanted", nargs=-1)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--draws", default=DRAWS, show_default=True)
@click.option("--clock", default=1.0, show_default=True, help="Tensor cores this much slower than described.")
@click.option("--no-recipe", is_flag=True, help="Without the name of the rows' recipe.")
@click.option(
    "--steps", type=click.Path(path_type=Path), default=KEPT, show_default=True, help="Kept captured steps."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    wanted: tuple[str, ...], data: Path | None, draws: int, clock: float, no_recipe: bool, steps: Path,
    as_json: bool,
) -> None:  # fmt: skip
    document, made = {}, list[Score]()
    folder = data_folder(data)
    described = sources(folder, wanted, clock=clock, recipe=not no_recipe)
    for name, rows in chain(described, captured(folder, steps, wanted)):
        points = curve_of(rows, draws)
        each = {str(p.runs): {"mape": p.mape, "inside": p.inside} for p in points}
        document[name] = {"rows": len(rows), "runs_learned": each}
        made += lines(name, len(rows), points)
    show(made, document, as_json=as_json)
