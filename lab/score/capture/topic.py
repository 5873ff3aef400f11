"""``python -m lab score capture``: steps of captured scripts against measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from lab.datasets.folder import data_folder
from lab.score.capture import models
from lab.score.capture.models import Captures, MeasuredRow, ModelRow
from stepsight.score import CHOSEN, Score
from stepsight.validate.scoreboard import plain

TOPIC = "capture"
STEP_GMAE, STEP_MAPE, ACTIVE_MAPE, RESERVED_MAPE = 0.04, 0.06, 0.015, 0.06
"""What is asked of the steps of models_h100.csv."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that were captured, and configurations that could not be, with the reason."""

    rows: tuple[ModelRow, ...]
    missing: tuple[tuple[str, str], ...]


def measured(data: Path, only: Sequence[str] = ()) -> list[MeasuredRow]:
    """The rows of the folder, or those whose names hold one of ``only``."""
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    path = folder / models.FILE
    if not path.is_file():
        click.echo(f"{models.FILE}: not in {folder}, skipped", err=True)
        return []
    rows = models.read(path)
    return [r for r in rows if not only or any(text in r.configuration.name for text in only)]


def found(data: Path, only: Sequence[str] = (), steps: Path | None = None) -> Found:
    from stepsight.platform.load import load_platform

    folder = data / "e2e" if (data / "e2e").is_dir() else data
    captures = Captures(
        load_platform(models.PLATFORM), steps, folder / "configs", lambda text: click.echo(text, err=True)
    )
    outcomes = list(models.predicted(measured(data, only), captures))
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    missing = tuple((o.configuration.name, o.problem) for o in outcomes if o.problem)
    return Found(rows, missing)


def scores(data: Path) -> list[Score]:
    return scored(found(data))


def scored(f: Found) -> list[Score]:
    """Step time and both peaks over all rows, and the step time of each model."""
    if not f.rows:
        return []
    steps = [r.measured_ms for r in f.rows]
    inside = sum(r.inside for r in f.rows)
    without = f"; {len(f.missing)} configurations were not captured" if f.missing else ""
    worst = max((r.predicted_ms / r.measured_ms - 1 for r in f.rows), key=abs)
    lines = [
        Score.of(
            TOPIC, "step time", [r.predicted_ms for r in f.rows], steps, "all rows", gmae_target=STEP_GMAE,
            mape_target=STEP_MAPE,
            note=f"worst {worst:+.1%}; {inside}/{len(steps)} inside the interval{without}", exposure=CHOSEN,
        ),
        Score.of(
            TOPIC, "peak active memory", [r.predicted_active_bytes for r in f.rows],
            [r.measured_active_bytes for r in f.rows], "all rows", mape_target=ACTIVE_MAPE, exposure=CHOSEN,
        ),
        Score.of(
            TOPIC, "peak reserved memory", [r.predicted_reserved_bytes for r in f.rows],
            [r.measured_reserved_bytes for r in f.rows], "all rows", mape_target=RESERVED_MAPE,
            exposure=CHOSEN,
        ),
    ]  # fmt: skip
    for model in dict.fromkeys(r.model for r in f.rows):
        own = [r for r in f.rows if r.model == model]
        lines.append(
            Score.of(TOPIC, f"step time of {model}", [r.predicted_ms for r in own],
                     [r.measured_ms for r in own], "its rows", exposure=CHOSEN)
        )  # fmt: skip
    return lines


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose names hold this; repeatable.")
@click.option(
    "--steps", type=click.Path(path_type=Path),
    help="Keep captured steps in this folder, and take from it those that are there.",
)  # fmt: skip
@click.option(
    "--traces", is_flag=True, help="Compare scripts with the traces of the runs they write down again."
)
@click.option("--training", is_flag=True, help="Score torchtitan's published runs, captured from a script.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    data: Path | None, only: tuple[str, ...], steps: Path | None, traces: bool, training: bool, as_json: bool
) -> None:
    """Library models captured and predicted, against their measured steps and memory."""
    from stepsight.validate import scoreboard

    if traces or training:
        from lab.score.capture.tables import show_published, show_traced

        if traces:
            show_traced(data_folder(data), only, steps, as_json=as_json)
        if training:
            show_published(data_folder(data), only, steps, as_json=as_json)
        return
    result = found(data_folder(data), only, steps)
    lines = scored(result)
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json(_document(result, lines)))
    else:
        _print(result)
        scoreboard.table(lines)
    scoreboard.end(lines)


def _document(result: Found, lines: Sequence[Score]) -> dict[str, Any]:
    return {
        "rows": [msgspec.to_builtins(r) for r in result.rows],
        "not_captured": [{"step": name, "reason": why} for name, why in result.missing],
        "scores": plain(lines),
    }


def _print(result: Found) -> None:
    from rich.table import Table

    from stepsight.terminal import terminal

    table = Table(box=None, padding=(0, 1))
    for name in ("step", "measured", "predicted", "error", "interval", "active", "reserved"):
        table.add_column(name, justify="left" if name == "step" else "right", no_wrap=True)
    for r in result.rows:
        table.add_row(
            r.name, f"{r.measured_ms:.1f} ms", f"{r.predicted_ms:.1f} ms",
            f"{r.predicted_ms / r.measured_ms - 1:+.1%}", "inside" if r.inside else "outside",
            f"{r.predicted_active_bytes / r.measured_active_bytes - 1:+.2%}",
            f"{r.predicted_reserved_bytes / r.measured_reserved_bytes - 1:+.2%}",
        )  # fmt: skip
    terminal().print(table)
    for name, why in result.missing:
        click.echo(f"not captured: {name}: {why}")
