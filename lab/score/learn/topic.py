"""``python -m lab score learn``: error against the number of a source's own runs that are learned from.

Every row is asked as a user asks it (what the row states, and the recipe's name; no figures of its cluster).
k runs are drawn at random, their factors learned, and other rows of the source predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import numpy as np

from lab.datasets.folder import data_folder, read_csv
from lab.datasets.llm.case import Case
from lab.datasets.llm.files import all_cases
from stepsight.capture.step.captured import load_step
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import INTERVAL_SIGMAS
from stepsight.prediction.learn.regression import Observed, Posterior, learn
from stepsight.prediction.learn.response import LanguageResponse, elasticities
from stepsight.prediction.learn.steps import asked, interval_spread
from stepsight.prediction.llm.answer import answered
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.predict import predict_captured
from stepsight.score import CHOSEN, COVERAGE, Score
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.workload import LanguageWorkload

TOPIC = "learn"
KS = (0, 1, 2, 3, 5, 10)
DRAWS, MOST_SCORED, FEWEST_ROWS, MOST_ROWS = 20, 40, 20, 250
"""``MOST_ROWS`` of a source are taken, at random."""
HIGH_ERROR = 0.10
"""Sources above this without runs are to lose `LESS` of it."""
LESS = {3: 0.40, 10: 0.55}
WORSE = 0.005
TIMM = "timm_train_rtx3090"


@dataclass(frozen=True, slots=True)
class Row:
    """A run with its step as a response to the parts, and the interval that is stated without learning."""

    observed: Observed
    step_us: float
    slopes: FloatArray


@dataclass(frozen=True, slots=True)
class Point:
    """Mean error and share inside the interval, of rows not learned from; half the width of the interval."""

    mape: float
    inside: float
    half_width: float


def sources(data: Path, wanted: Sequence[str] = (), steps: Path | None = None) -> dict[str, list[Row]]:
    """Rows by source, those with enough of them."""
    found: dict[str, list[Row]] = {}
    by_source: dict[str, list[Case]] = {}
    for _, cases in all_cases(data):
        for case in cases:
            for name in _names(case):
                if not wanted or any(text in name for text in wanted):
                    by_source.setdefault(name, []).append(case)
    rng = np.random.default_rng(0)
    for name, cases in by_source.items():
        able = [c for c in cases if c.asked is not None and c.measured_ms is not None and not c.slow]
        chosen = [able[i] for i in sorted(rng.permutation(len(able))[:MOST_ROWS].tolist())]
        found[name] = [row for case in chosen if (row := _language(case)) is not None]
    if steps and (not wanted or any(text in TIMM for text in wanted)):
        found[TIMM] = list(_captured(data, steps))
    return {name: rows for name, rows in found.items() if len(rows) >= FEWEST_ROWS}


def _names(case: Case) -> tuple[str, ...]:
    """The sources that a case counts for. The sweep's pipelines polled for messages with sleeps of 0.1 s, by
    its own account, so its runs without a pipeline also stand by themselves."""
    if case.source.startswith("gpt_a100"):
        return ("gpt",)
    parallel = (case.stated or {}).get("parallel", {})
    if "sweep" in case.source and parallel.get("pipeline", 1) == 1:
        return (case.source, f"{case.source}: no pipeline")
    return (case.source,)


@cache
def _platform(name: str, overrides: tuple[str, ...]) -> Platform:
    return load_platform(name, overrides)


def _language(case: Case) -> Row | None:
    if case.asked is None or case.measured_ms is None or case.slow:
        return None
    try:
        platform = _platform(case.platform, case.overrides)
        workload = resolve(parse_workload(case.asked, case.name), platform.spec.ranks, platform.spec.gpu)
        if not isinstance(workload, LanguageWorkload):
            return None
        composer = Composer(workload.config, platform.with_ranks(workload.ranks))
    except StepsightError:
        return None
    response = LanguageResponse(composer)
    step_us, slopes = elasticities(response)
    quick = answered(composer)
    spread = interval_spread(quick.low_us, quick.high_us)
    return Row(Observed(case.name, response, 1e3 * case.measured_ms, spread), step_us, slopes)


def _captured(data: Path, steps: Path) -> Iterator[Row]:
    """Captured steps of timm models, as ``<layout>/<model>.json``."""
    platform = load_platform("1xRTX-3090")
    for row in read_csv(data / "e2e" / f"{TIMM}.csv"):
        file = steps / row["layout"] / f"{row['model']}.json"
        if not file.is_file():
            continue
        step = load_step(file)
        made = predict_captured(step, platform)
        found = asked(made, platform, step.steps)
        step_us, slopes = elasticities(found.response)
        name, measured_us = f"{row['model']} {row['layout']}", 1e3 * float(row["step_ms"])
        yield Row(Observed(name, found.response, measured_us, found.spread), step_us, slopes)


def curve(rows: Sequence[Row], draws: int = DRAWS, seed: int = 1) -> dict[int, Point]:
    """A point for each number of runs."""
    rng = np.random.default_rng(seed)
    return {k: _point(rows, k, draws if k else 1, rng) for k in KS if k <= len(rows) - 10}


def _point(rows: Sequence[Row], k: int, draws: int, rng: np.random.Generator) -> Point:
    errors: list[float] = []
    inside: list[bool] = []
    widths: list[float] = []
    for _ in range(draws):
        order = rng.permutation(len(rows)).tolist()
        scored = [rows[i] for i in (order[k : k + MOST_SCORED] if k else order)]
        found = learn([rows[i].observed for i in order[:k]]) if k else None
        for row in scored:
            error, reach = _predicted(row, found)
            errors.append(abs(math.exp(error) - 1))
            inside.append(abs(error) <= reach)
            widths.append(reach)
    return Point(float(np.mean(errors)), float(np.mean(inside)), float(np.mean(widths)))


def _predicted(row: Row, found: Posterior | None) -> tuple[float, float]:
    """ln(predicted / measured), and how far the interval reaches in logarithms."""
    measured = row.observed.measured_us
    if found is None:
        return math.log(row.step_us / measured), INTERVAL_SIGMAS * row.observed.spread
    step_us = float(row.observed.response.steps_us([found.factors])[0])
    return math.log(step_us / measured), INTERVAL_SIGMAS * found.spread(row.slopes, row.observed.spread)


def lines(name: str, rows: int, points: dict[int, Point]) -> list[Score]:
    """One line for each number of runs, with its bars."""
    first = points[0].mape
    found = []
    for k, point in points.items():
        bars, met = [], True
        if k in LESS and first > HIGH_ERROR:
            bars.append(f"error {LESS[k]:.0%} less than without runs")
            met &= point.mape <= (1 - LESS[k]) * first
        if k:
            bars.append("at most half a point worse")
            met &= point.mape <= first + WORSE
        bars.append(f"{COVERAGE[0]:.0%}–{COVERAGE[1]:.0%} inside")
        met &= COVERAGE[0] <= round(point.inside, 3) <= COVERAGE[1]
        note = f"{point.inside:.0%} inside, ± {math.expm1(point.half_width):.0%}"
        found.append(
            Score(
                TOPIC, f"{name}, {k} runs learned", rows, point.mape, point.mape,
                "rows not learned from, not slow", ", ".join(bars), met, note, exposure=CHOSEN,
            )
        )  # fmt: skip
    return found


def scores(data: Path) -> list[Score]:
    """The lines of the scoreboard."""
    return [line for name, rows in sources(data).items() for line in lines(name, len(rows), curve(rows))]


@click.command(TOPIC, help="Error against the number of own runs learned from.")
@click.argument("wanted", nargs=-1)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--steps", type=click.Path(path_type=Path), help="Folder of captured timm steps.")
@click.option("--draws", default=DRAWS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    wanted: tuple[str, ...], data: Path | None, steps: Path | None, draws: int, as_json: bool
) -> None:
    found = sources(data_folder(data), wanted, steps)
    curves = {}
    for name, rows in found.items():
        curves[name] = (len(rows), curve(rows, draws))
        if not as_json:
            click.echo(f"{name:32s} {len(rows):4d} rows  " + _line(curves[name][1].items()))
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json({n: _document(rows, points) for n, (rows, points) in curves.items()}))


def _line(points: Iterable[tuple[int, Point]]) -> str:
    return "  ".join(f"{k}: {p.mape:5.1%} ({p.inside:.0%})" for k, p in points)


def _document(rows: int, points: dict[int, Point]) -> dict[str, object]:
    each = {
        str(k): {"mape": p.mape, "inside": p.inside, "half_width": p.half_width} for k, p in points.items()
    }
    return {"rows": rows, "runs_learned": each}
