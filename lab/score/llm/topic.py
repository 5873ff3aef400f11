"""``python -m lab score llm``: measured language-model training, file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from lab.datasets.folder import data_folder
from lab.score.llm import gpt, layouts, published, sweep
from lab.score.llm.layers import layer_scores
from lab.score.llm.rows import Case, FileScore, Outcome, outcome, scored
from lab.score.steps import read_csv
from stepsight.score import CHOSEN, FIT, Figure, Score
from stepsight.validate.scoreboard import end, plain

TOPIC = "llm"
AS_A_USER = "as a user gets it (shipped constants, no figures of the site)"


@dataclass(frozen=True, slots=True)
class _File:
    """A measured table: how its rows are read, the bars for its mean error, for what fits and for memory, of
    how many rows with a time a fit takes one, and how blind its rows are."""

    name: str
    case: Callable[[dict[str, str]], Case]
    bar: float | None = None
    fits_bar: float | None = None
    memory_bar: float | None = None
    every: int = 1
    exposure: str = CHOSEN


FILES = (
    _File(gpt.SINGLE, gpt.case, 0.07, exposure=FIT),
    _File(gpt.MULTI, gpt.case, 0.10),
    _File(sweep.FILE, sweep.case, 0.12, 0.93, 0.06, every=3, exposure=FIT),
    _File(layouts.FILE, layouts.case, 0.10, 0.93, every=3, exposure=FIT),
    _File(published.FILE, published.case),
)
"""In the fit: constants of the program, or figures of the site, were read off these rows and are not made
again without them (docs/language_models.md lists which)."""
GROUP_BARS = {
    "llmfoundry.csv": 0.08,
    "torchtitan_fms.csv": 0.10,
    "internevo.csv": 0.07,
    "simumax_b200.csv": 0.08,
    "nemo_megatron.csv": 0.12,
}
"""Parts of ``other_training.csv`` that have bars of their own."""


def outcomes(data: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[_File, list[Outcome]]]:
    """Every file that is there, with all its rows predicted by constants that they took no part in."""
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    for file in FILES:
        if wanted and not any(part in file.name for part in wanted):
            continue
        if not (folder / file.name).is_file():
            click.echo(f"{file.name}: not in {folder}, skipped", err=True)
            continue
        yield file, [outcome(case) for case in cases(file, folder)]


def cases(file: _File, folder: Path) -> list[Case]:
    """All rows of a file."""
    found = (file.case(row) for row in read_csv(folder / file.name))
    return [replace(case, file=file.name, fit_group=case.fit_group or case.group) for case in found]


def file_scores(data: Path, wanted: Sequence[str] = ()) -> list[FileScore]:
    """One score a file, and one for each part of the published tables."""
    found = []
    for file, rows in outcomes(data, wanted):
        found.append(
            scored(
                file.name, rows, file.bar, fits_bar=file.fits_bar, memory_bar=file.memory_bar,
                exposure=file.exposure,
            )
        )  # fmt: skip
        found += layer_scores(file.name, rows) if file.name == gpt.SINGLE else []
        if file.name == published.FILE:
            for group in dict.fromkeys(o.case.group for o in rows):
                part = [o for o in rows if o.case.group == group]
                if any(o.timed for o in part):
                    found.append(scored(f"{file.name}: {group}", part, GROUP_BARS.get(group)))
    return found


def scores(data: Path, rows: str = "heldout") -> list[Score]:
    """The lines of the scoreboard."""
    return [line for s in file_scores(data) for line in lines_of(s)]


def lines_of(s: FileScore) -> list[Score]:
    """A line each for step time, for what fits, for memory, and for time as a user without a site gets it."""
    met = None if s.bar is None else s.mape <= s.bar
    bar = "" if s.bar is None else f"MAPE ≤ {s.bar:.0%}"
    lines = [
        Score(
            TOPIC, s.file, s.timed, s.gmae, s.mape, "all rows with a time", bar, met, _note(s),
            exposure=s.exposure,
        )
    ]  # fmt: skip
    if s.fits_right is not None:
        lines.append(
            Score.reading(
                TOPIC, f"{s.file}: fits or not", s.fits_rows, Figure("right", s.fits_right, "more"),
                "rows that ran or crashed",
                target="" if s.fits_bar is None else f"≥ {s.fits_bar:.0%}",
                met=None if s.fits_bar is None else s.fits_right >= s.fits_bar, exposure=s.exposure,
            )
        )  # fmt: skip
    if s.memory_mape is not None:
        lines.append(
            Score(
                TOPIC, f"{s.file}: memory", s.memory_rows, s.memory_gmae, s.memory_mape,
                "rows with a measured peak",
                "" if s.memory_bar is None else f"MAPE ≤ {s.memory_bar:.0%}",
                None if s.memory_bar is None else s.memory_mape <= s.memory_bar, exposure=s.exposure,
            )
        )  # fmt: skip
    if s.without_site_mape is not None:
        lines.append(
            Score(
                TOPIC, f"{s.file}: {AS_A_USER}", s.timed, s.without_site_gmae, s.without_site_mape,
                "all rows with a time", exposure=FIT,
            )
        )  # fmt: skip
    return lines


def _note(s: FileScore) -> str:
    if s.note:
        return s.note
    note = f"{s.inside:.0%} inside the interval; {s.expressed} of {s.rows} expressed; "
    note += f"with the shipped constants {s.shipped_mape:.1%}"
    return note


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--file", "wanted", multiple=True, help="Only tables whose name holds this (may be repeated).")
@click.option("--each", is_flag=True, help="Every row beside its prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, wanted: tuple[str, ...], each: bool, as_json: bool) -> None:
    """Language-model training on 1 to 1,024 GPUs: time, memory, and what fits."""
    folder = data_folder(data)
    if each:
        _show_rows(folder, wanted, as_json)
        return
    found = [(s, lines_of(s)) for s in file_scores(folder, wanted)]
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json({s.file: {**msgspec.to_builtins(s), "scores": plain(own)} for s, own in found}))
    else:
        for s, own in found:
            _show(s, own)
    end([line for _, own in found for line in own])


def _show(s: FileScore, lines: Sequence[Score]) -> None:
    if s.note:
        click.echo(f"{s.file}: MAPE {s.mape:.1%}, GMAE {s.gmae:.1%} of {s.rows}; {s.note}")
        return
    click.echo(f"{s.file}: {s.expressed} of {s.rows} rows expressed, {s.timed} with a time")
    bars = {line.name: f" (bar {line.target}: {line.verdict})" if line.target else "" for line in lines}
    shipped = f"with the shipped constants {s.shipped_mape:.1%}, {s.shipped_gmae:.1%}"
    click.echo(f"  MAPE {s.mape:.1%}, GMAE {s.gmae:.1%}{bars[s.file]}; {shipped}")
    if s.without_site_mape is not None:
        click.echo(f"  {AS_A_USER}: MAPE {s.without_site_mape:.1%}, GMAE {s.without_site_gmae:.1%}")
    click.echo(f"  {s.inside:.0%} inside the 90 % interval")
    if s.fits_right is not None:
        click.echo(
            f"  fits or not, right in {s.fits_right:.1%} of {s.fits_rows}{bars[f'{s.file}: fits or not']}"
        )
    if s.memory_mape is not None:
        click.echo(f"  memory MAPE {s.memory_mape:.1%}{bars[f'{s.file}: memory']}")
    for reason, count in list(s.lacking.items())[:6]:
        click.echo(f"  not expressed: {count} × {reason}")


def _show_rows(folder: Path, wanted: Sequence[str], as_json: bool) -> None:
    found = [(file.name, o) for file, rows in outcomes(folder, wanted) for o in rows]
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json([_plain(name, o) for name, o in found]))
        return
    for _, o in found:
        if o.timed:
            times = f"{o.case.measured_ms:10.1f} ms {o.predicted_ms:10.1f} ms {o.error:+.1%}"
            click.echo(f"{o.case.name:70s} {times}")


def _plain(name: str, o: Outcome) -> dict[str, object]:
    return {
        "file": name,
        "row": o.case.name,
        "measured_ms": o.case.measured_ms,
        "predicted_ms": o.predicted_ms if o.predicted_ms else None,
        "shipped_ms": o.shipped_ms if o.shipped_ms else None,
        "without_site_ms": o.without_site_ms if o.without_site_ms else None,
        "low_ms": o.low_ms,
        "high_ms": o.high_ms,
        "measured_gb": o.case.measured_gb,
        "memory_gb": o.memory_gb,
        "crashed": o.case.crashed,
        "fits": o.fits,
        "lacks": o.lacks,
    }
