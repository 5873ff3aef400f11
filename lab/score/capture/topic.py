"""``python -m lab score capture``: steps of captured scripts against measured ones, file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import click

from lab.datasets.captured_steps import FILES, MeasuredStep, read_steps
from lab.datasets.folder import data_folder
from lab.score.capture.steps import ScoredStep, scored
from lab.score.frame import show
from stepsight.score import CHOSEN, Figure, Score, gmae, mape
from stepsight.validate.scoreboard import plain

TOPIC = "capture"
KEPT = Path("validation/captured")
"""Where captured steps are kept unless --steps names another folder."""
SAMPLE = 40
"""Rows of each file that are scored unless --all asks for every one."""
LEAST_ROWS = 4
"""Fewer rows than this make no line of their own."""


@dataclass(frozen=True, slots=True)
class Bars:
    """What is asked of a file; zero: nothing."""

    step_mape: float = 0.0
    step_gmae: float = 0.0
    active_mape: float = 0.0
    reserved_mape: float = 0.0
    fits_right: float = 0.0


BARS = {
    "models_h100": Bars(0.06, 0.04, 0.015, 0.06),
    "timm_train_rtx3090": Bars(0.11, fits_right=0.93),
    "timm_forward_consumer": Bars(0.14),
    "peft_l40s": Bars(0.10, reserved_mape=0.06),
    "lambda_gpus": Bars(),
    "lambda_gpus: resnet50": Bars(0.12),
}


def scores(data: Path) -> list[Score]:
    """What `lab score all` prints; steps that are kept are taken from there."""
    return lines(found(data, sample=SAMPLE))


def found(
    data: Path, files: tuple[str, ...] = (), only: Sequence[str] = (), keep: Path = KEPT, sample: int = 0
) -> list[ScoredStep]:
    rows = [r for r in read_steps(data, files) if not only or any(text in r.name for text in only)]
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    return list(
        scored(_sampled(rows, sample), keep, folder / "configs", lambda text: click.echo(text, err=True))
    )


def _sampled(rows: Sequence[MeasuredStep], sample: int) -> list[MeasuredStep]:
    """Every n-th row of each file, so that at most ``sample`` of it remain."""
    if not sample:
        return list(rows)
    counts, seen = Counter(r.file for r in rows), Counter[str]()
    chosen = []
    for row in rows:
        every = -(-counts[row.file] // sample)
        if seen[row.file] % every == 0:
            chosen.append(row)
        seen[row.file] += 1
    return chosen


def lines(steps: Sequence[ScoredStep]) -> list[Score]:
    """By file: step time, memory, what fits; then step time by layout, board and family."""
    made: list[Score] = []
    for file in dict.fromkeys(s.row.file for s in steps):
        own = [s for s in steps if s.row.file == file]
        made += _file(file, own)
        groups = dict.fromkeys(g for s in own for g in s.row.groups)
        for group in groups:
            part = [s for s in own if group in s.row.groups and not s.problem]
            if len(part) >= LEAST_ROWS:
                made.append(_step(f"{file}: {group}", part, BARS.get(f"{file}: {group}", Bars())))
    return made


def _file(file: str, own: Sequence[ScoredStep]) -> Iterator[Score]:
    bars, good = BARS.get(file, Bars()), [s for s in own if not s.problem]
    if not good:
        return
    other = sum(s.other_model for s in own)
    failed = len(own) - len(good) - other
    without = f"; {failed} not captured" if failed else ""
    without += f"; {other} rows of models that the library has no longer" if other else ""
    yield _step(file, good, bars, without)
    for what, bar in (("active", bars.active_mape), ("reserved", bars.reserved_mape)):
        have = [s for s in good if getattr(s.row, f"{what}_bytes")]
        if have:
            predicted = [getattr(s, f"{what}_bytes") for s in have]
            measured = [getattr(s.row, f"{what}_bytes") for s in have]
            yield Score.of(
                TOPIC, f"{file}: peak {what} memory", predicted, measured, "all rows",
                mape_target=bar or None, exposure=CHOSEN,
            )  # fmt: skip
    labels = fits(good)
    if labels:
        share = mean(labels)
        yield Score.reading(
            TOPIC, f"{file}: what fits", len(labels), Figure("right", share, "more"),
            "batches that ran, and the next larger ones that failed", exposure=CHOSEN,
            bar=bars.fits_right or None,
        )  # fmt: skip


def _step(name: str, good: Sequence[ScoredStep], bars: Bars, without: str = "") -> Score:
    worst = max((s.predicted_ms / s.row.step_ms - 1 for s in good), key=abs)
    inside = sum(s.inside for s in good)
    return Score.of(
        TOPIC, f"{name}: step time", [s.predicted_ms for s in good], [s.row.step_ms for s in good],
        "all rows", gmae_target=bars.step_gmae or None, mape_target=bars.step_mape or None,
        note=f"worst {worst:+.1%}; {inside}/{len(good)} inside the interval{without}", exposure=CHOSEN,
    )  # fmt: skip


def fits(good: Sequence[ScoredStep]) -> list[bool]:
    """Of files that name a batch that failed: whether each batch is called right."""
    if not any(s.row.larger_batch for s in good):
        return []
    return [s.fits for s in good] + [not s.larger_fits for s in good if s.row.larger_batch]


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--file", "files", multiple=True, type=click.Choice(list(FILES)), help="Only these files.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose names hold this; repeatable.")
@click.option(
    "--sample", type=click.IntRange(min=1), default=SAMPLE, show_default=True,
    help="At most this many rows of each file, evenly spaced.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Every row: about a thousand captures.")
@click.option(
    "--steps", type=click.Path(path_type=Path), default=KEPT, show_default=True,
    help="Keep captured steps in this folder, and take from it those that are there.",
)  # fmt: skip
@click.option("--each", is_flag=True, help="Print every row.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    data: Path | None, files: tuple[str, ...], only: tuple[str, ...], sample: int, every: bool, steps: Path,
    each: bool, as_json: bool,
) -> None:  # fmt: skip
    """Published models captured and predicted, against their measured steps and memory."""
    result = found(data_folder(data), files, only, steps, 0 if every or only else sample)
    made = lines(result)
    if each and not as_json:
        for s in result:
            error = f"{s.predicted_ms / s.row.step_ms - 1:+.1%}"
            click.echo(f"{s.row.name}: {s.problem or f'{s.row.step_ms:.1f} ms, predicted {error}'}")
    show(made, _document(result, made, each=each), as_json=as_json)


def _document(result: Sequence[ScoredStep], made: Sequence[Score], *, each: bool) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for file in dict.fromkeys(s.row.file for s in result):
        own = [s for s in result if s.row.file == file]
        good = [s for s in own if not s.problem]
        predicted, measured = [s.predicted_ms for s in good], [s.row.step_ms for s in good]
        labels = fits(good)
        document[file] = {
            "rows": len(good),
            "failed": sum(bool(s.problem) and not s.other_model for s in own),
            "other_models": sum(s.other_model for s in own),
            "mape": mape(predicted, measured) if good else None,
            "gmae": gmae(predicted, measured) if good else None,
            "inside": mean(s.inside for s in good) if good else None,
            "memory_active_mape": _memory(good, "active_bytes"),
            "memory_reserved_mape": _memory(good, "reserved_bytes"),
            "fits_right": mean(labels) if labels else None,
            "scores": plain(s for s in made if s.name.startswith(file)),
            "not_captured": [{"step": s.row.name, "reason": s.problem} for s in own if s.problem],
        }
        if each:
            document[file]["each"] = [_row(s) for s in good]
    return document


def _memory(good: Sequence[ScoredStep], what: str) -> float | None:
    have = [s for s in good if getattr(s.row, what)]
    return mape([getattr(s, what) for s in have], [getattr(s.row, what) for s in have]) if have else None


def _row(s: ScoredStep) -> dict[str, Any]:
    return {
        "name": s.row.name, "groups": s.row.groups, "measured_ms": s.row.step_ms,
        "predicted_ms": s.predicted_ms, "low_ms": s.low_ms, "high_ms": s.high_ms,
        "active_bytes": s.active_bytes,
        "reserved_bytes": s.reserved_bytes, "fits": s.fits, "larger_fits": s.larger_fits,
    }  # fmt: skip
