"""``python -m lab score llm``: measured language-model training, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click
import msgspec

from lab.datasets.folder import data_folder
from lab.datasets.llm.files import all_cases
from lab.score.frame import show
from lab.score.llm.rows import FileScore, Outcome, outcome, scored
from lab.score.llm.scaling import pairs, scaling_lines
from stepsight.documents import to_json
from stepsight.score import BLIND, CHOSEN, FIT, Figure, Score
from stepsight.validate.scoreboard import plain

TOPIC = "llm"
BARS: Mapping[str, dict[str, float]] = {
    "gpt_a100_single_node": {"mape": 0.07},
    "gpt_a100_multi_node": {"mape": 0.10},
    "llm_h100_sweep": {"fits_right": 0.93, "memory_mape": 0.06},
    "llm_a100_layouts": {"mape": 0.10, "fits_right": 0.93},
    "dgxc_llm": {"mape": 0.07, "as_asked_mape": 0.10},
    "mlperf_llm": {"mape": 0.12, "as_asked_mape": 0.15},
    "other_training: llmfoundry.csv": {"mape": 0.08},
    "other_training: torchtitan_fms.csv": {"mape": 0.10},
    "other_training: internevo.csv": {"mape": 0.07},
    "other_training: simumax_b200.csv": {"mape": 0.08},
    "other_training: nemo_megatron.csv": {"mape": 0.12},
}
"""Bars of files and of parts of ``other_training``: errors at most, shares at least."""
LIKELY_RAN, UNLIKELY_RAN = 0.85, 0.15
"""Of rows given at least 80 %, and at most 20 %, to fit: how many ran, at least and at most."""
ENOUGH_ROWS = 20
"""Fewer do not decide whether chances to fit are right."""
EXPOSURE = {
    "gpt_a100_single_node": FIT, "llm_h100_sweep": FIT, "llm_a100_layouts": FIT, "dgxc_llm": CHOSEN,
    "mlperf_llm": CHOSEN, "xtuner_a100_long": CHOSEN, "gpt_a100_multi_node": CHOSEN, "other_training": FIT,
}  # fmt: skip
"""How blind a file's rows are: constants that ship were fitted on, or chosen with, these."""
READINGS = {
    "as_asked": "as a user asks: the row and the recipe's name",
    "not_slow": "without runs that the file's rule leaves out as slow",
}


def outcomes(data: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[str, list[Outcome]]]:
    """Every file that is there, with all its rows predicted."""
    for file, found in all_cases(data, wanted):
        yield file.name, [outcome(case) for case in found]


def file_scores(data: Path, wanted: Sequence[str] = ()) -> list[FileScore]:
    """One score per file, with its parts."""
    return [score_of(name, rows) for name, rows in outcomes(data, wanted)]


def score_of(name: str, rows: Sequence[Outcome]) -> FileScore:
    """A file and its parts: publications, models or methods that are scored by themselves."""
    groups = dict.fromkeys(o.case.group for o in rows)
    by_part = 1 < len(groups) <= 10
    parts = [_part(name, group, [o for o in rows if o.case.group == group]) for group in groups if by_part]
    whole = scored(name, rows, BARS.get(name), [part for part in parts if part.timed or part.memory_rows])
    return replace(whole, scaling=tuple(pairs(rows)))


def _part(name: str, group: str, rows: Sequence[Outcome]) -> FileScore:
    return scored(f"{name}: {group}", rows, BARS.get(f"{name}: {group}"))


def scores(data: Path) -> list[Score]:
    """The lines of the scoreboard."""
    found = file_scores(data)
    return [*(line for s in found for line in lines_of(s)), *_scaling(found)]


def _scaling(found: Sequence[FileScore]) -> list[Score]:
    return scaling_lines(TOPIC, {s.file: s.scaling for s in found})


def lines_of(s: FileScore) -> list[Score]:
    """Lines for the step time in full, as a user asks and without slow runs, for what fits, for memory; then
    the parts' times."""
    exposure = EXPOSURE.get(s.file.partition(":")[0], BLIND)
    lines = []
    for reading, rows in (("", s.timed), ("as_asked", s.as_asked_timed), ("not_slow", s.timed - s.slow_rows)):
        key = f"{reading}_" if reading else ""
        error, inside = getattr(s, f"{key}mape"), getattr(s, f"{key}inside")
        if error is None:
            continue
        name = f"{s.file}, {READINGS[reading]}" if reading else s.file
        bar = s.bars.get(f"{key}mape")
        lines.append(
            Score(
                TOPIC, name, rows, getattr(s, f"{key}gmae"), error, "rows with a time",
                "" if bar is None else f"MAPE ≤ {bar:.0%}", None if bar is None else error <= bar,
                f"{inside:.0%} inside the interval; {s.expressed} of {s.rows} rows expressed",
                exposure=exposure,
            )
        )  # fmt: skip
    if s.fits_right is not None:
        lines.append(
            Score.reading(
                TOPIC, f"{s.file}: fits or not", s.fits_rows, Figure("right", s.fits_right, "more"),
                "rows that ran or ran out of memory", bar=s.bars.get("fits_right"), exposure=exposure,
            )
        )  # fmt: skip
    lines += _calibration(s, exposure)
    if s.memory_mape is not None:
        most = s.bars.get("memory_mape")
        lines.append(
            Score(
                TOPIC, f"{s.file}: memory", s.memory_rows, s.memory_gmae, s.memory_mape,
                "rows with a measured peak", "" if most is None else f"MAPE ≤ {most:.0%}",
                None if most is None else s.memory_mape <= most, exposure=exposure,
            )
        )  # fmt: skip
    for part in s.parts:
        lines += [line for line in lines_of(part) if line.gmae is not None and ": memory" not in line.name]
    return lines


def _calibration(s: FileScore, exposure: str) -> list[Score]:
    """Whether chances to fit are right, for files with runs that ran out of memory."""
    parts: tuple[tuple[str, int, float | None, Literal["less", "more"], float], ...] = (
        ("80 % or more", s.likely_rows, s.likely_ran, "more", LIKELY_RAN),
        ("20 % or less", s.unlikely_rows, s.unlikely_ran, "less", UNLIKELY_RAN),
    )
    return [
        Score.reading(
            TOPIC, f"{s.file}: given {what} to fit", rows, Figure("ran", ran, better),
            "rows that ran or ran out of memory", bar=bar if rows >= ENOUGH_ROWS else None, exposure=exposure,
        )
        for what, rows, ran, better, bar in parts if ran is not None and s.crashes
    ]  # fmt: skip


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--file", "wanted", multiple=True, help="Only tables whose name holds this (may be repeated).")
@click.option("--each", is_flag=True, help="Every row with its prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, wanted: tuple[str, ...], each: bool, as_json: bool) -> None:
    """Language-model training on 1 to 3,072 GPUs: time, memory, and what fits."""
    folder = data_folder(data)
    if each:
        rows = [_plain(name, o) for name, found in outcomes(folder, wanted) for o in found]
        click.echo(to_json(rows) if as_json else "\n".join(_line(row) for row in rows))
        return
    found = [(s, lines_of(s)) for s in file_scores(folder, wanted)]
    figures = {s.file: {**plain_score(s), "scores": plain(own)} for s, own in found}
    lines = [line for _, own in found for line in own] + _scaling([s for s, _ in found])
    show(lines, figures, as_json=as_json)


def plain_score(s: FileScore) -> dict[str, object]:
    """A file's score as JSON has it; parts by name."""
    record: dict[str, object] = msgspec.to_builtins(replace(s, parts=()))
    return {**record, "parts": {part.file.partition(": ")[2]: plain_score(part) for part in s.parts}}


def _line(row: Mapping[str, object]) -> str:
    times = "  ".join(f"{key} {row[key]}" for key in ("measured_ms", "predicted_ms", "as_asked_ms"))
    return f"{row['row']}: {times}"


def _plain(name: str, o: Outcome) -> dict[str, object]:
    return {
        "file": name,
        "row": o.case.name,
        "group": o.case.group,
        "measured_ms": o.case.measured_ms,
        "predicted_ms": o.full.step_ms or None,
        "low_ms": o.full.low_ms,
        "high_ms": o.full.high_ms,
        "as_asked_ms": o.asked.step_ms or None,
        "as_asked_low_ms": o.asked.low_ms,
        "as_asked_high_ms": o.asked.high_ms,
        "measured_gb": o.case.measured_gb,
        "memory_gb": o.memory_gb,
        "crashed": o.case.crashed,
        "slow": o.case.slow,
        "fits": o.full.fits,
        "lacks": o.full.lacks,
    }
