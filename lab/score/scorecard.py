"""The scorecard: docs/accuracy.md, made from the results of topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.score.results import TopicResult
from stepsight.score import BLIND, CHOSEN, FIT, Score

EXPOSURES: Mapping[str, str] = {
    BLIND: "blind",
    CHOSEN: "seen while tuning",
    FIT: "fitted",
    "": "not stated",
}
"""Exposure of rows in words."""
MOST_LINES = 40
"""In a topic with more lines, those of one kind are shown together; its command prints them all."""
SUMMARY = "summary.md"
"""The first screen of the page, in the folder of notes."""
HEAD = """## How the figures are made

How far predictions are from measurements, topic by topic. This page is made by
`python -m lab score all` and `python -m lab score --report docs/accuracy.md`; every figure is reproduced by
its section's command. The measured tables are read from `--data DIR` or `STEPSIGHT_DATA`; without them
`stepsight validate quick` scores rows that ship with the package.

- **GMAE** is the geometric mean of the absolute relative errors (0.04 percentage points are added to each, so
  that zeros do not collapse it), **MAPE** their arithmetic mean. A line that has no errors of times reads a
  figure of its own, which is named.
- **bar**: *met*, **missed**, or *open*: the bar is not reached, but so few rows may miss it by chance.
- **exposure**: *blind* (used for no fit, constant or choice), *seen while tuning* (in no fit, but visible
  while models or constants were chosen), *fitted* (a fit or a constant was made from them).
- **others on these rows**: what other predictors reach on exactly these rows, as GMAE / MAPE.
"""


def scorecard(results: Sequence[TopicResult], *, notes: Path | None = None, version: str = "") -> str:
    """The page; ``notes`` is a folder with TOPIC.md, what is missed there and why."""
    summary = notes / SUMMARY if notes else None
    parts = [summary.read_text(encoding="utf-8")] if summary and summary.is_file() else []
    parts.append(HEAD)
    if version not in ("", "unknown"):
        parts.append(f"Made with stepsight {version}.\n")
    parts += _bars([s for r in results for s in r.scores])
    parts += [_topic(result, notes) for result in results]
    return "\n".join(parts)


def _bars(scores: Sequence[Score]) -> list[str]:
    """How many bars are met, and which are not."""
    judged = [s for s in scores if s.met is not None]
    if not judged:
        return []
    missed = [f"- {s.topic}: {s.name}, {s.errors} ({s.target})" for s in judged if not s.met]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} bars are met{'; missed:' if missed else '.'}", ""]
    return ["\n".join([*lines, *map(_plain, missed), *([""] if missed else [])])]


def _topic(result: TopicResult, notes: Path | None) -> str:
    lines = [f"## {result.topic}", "", f"`{result.command}` ({result.seconds:.0f} s)", ""]
    if result.scores:
        lines += _table(result)
    note = notes / f"{result.topic}.md" if notes else None
    if note and note.is_file():
        lines += ["", note.read_text(encoding="utf-8").strip()]
    return "\n".join(lines) + "\n"


def _table(result: TopicResult) -> list[str]:
    """Our lines with other predictors' next to; of a topic with many lines those of one kind together."""
    names = {score.name: score for score in result.scores}
    own = [score for score in result.scores if not (score.predictor and score.same_rows_as in names)]
    own = [score for score in own if not _repeats(score, names)]
    kinds: dict[str, list[Score]] = {}
    for score in own:
        kinds.setdefault(score.kind or score.name, []).append(score)
    together = len(own) > MOST_LINES
    single = [s for members in kinds.values() for s in members if not together or len(members) == 1]
    lines = _lines(single, _others(result.scores)) if single else []
    if together:
        several = {kind: members for kind, members in kinds.items() if len(members) > 1}
        lines += ["", *_kinds(several)] if lines and several else _kinds(several) if several else []
    return lines


def _repeats(score: Score, names: Mapping[str, Score]) -> bool:
    """Whether a line without a bar says no more than another: of part of the rows of a line ("FILE: MODEL"),
    or what a user asks where that is the same. The command prints them all."""
    whole = names.get(score.name.partition(": ")[0])
    part = whole is not None and whole is not score and whole.rows_used == score.rows_used
    full = names.get(score.name.partition(", as a user asks")[0])
    same = full is not None and full is not score and (full.gmae, full.mape) == (score.gmae, score.mape)
    return not score.target and (part or same)


def _lines(scores: Sequence[Score], others: Mapping[str, Sequence[Score]]) -> list[str]:
    """A row a line; lines without errors read their figure in a column of its own."""
    figures = any(score.figure for score in scores)
    head = ("what", "rows", "GMAE", "MAPE", "figure", "bar", "others on these rows", "exposure")
    lines = [_row(*(name for name in head if figures or name != "figure"))]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    for score in scores:
        what = score.name + (f" ({score.rows_used})" if score.rows_used else "")
        errors = ["" if error is None else f"{error:.1%}" for error in (score.gmae, score.mape)]
        figure = [str(score.figure or "")] if figures else []
        theirs = ", ".join(f"{s.predictor} {s.errors}" for s in others.get(score.name, ()))
        lines.append(_row(what, f"{score.rows:,}", *errors, *figure, _bar(score), theirs, _exposure(score)))
    return lines


def _kinds(kinds: Mapping[str, Sequence[Score]]) -> list[str]:
    """A row a kind of lines, then every bar that is missed."""
    lines = [
        "| what | lines | rows | GMAE or figure, least to most (median) | bars met | exposure |",
        "|---|---|---|---|---|---|",
    ]
    for kind, members in kinds.items():
        judged = [score for score in members if score.met is not None]
        met = f"{sum(bool(s.met) for s in judged)} of {len(judged)}" if judged else ""
        seen = ", ".join(sorted({_exposure(score) for score in members}))
        rows = f"{sum(score.rows for score in members):,}"
        lines.append(_row(kind, str(len(members)), rows, _span(members), met, seen))
    missed = [score for members in kinds.values() for score in members if score.met is False]
    if missed:
        lines += ["", "Missed, each line of the command:", ""]
        lines += [_plain(f"- {s.name}: {s.errors} ({s.rows:,} rows; bar {s.target})") for s in missed]
    return lines


def _span(members: Sequence[Score]) -> str:
    """Least to most of what lines of one kind read: GMAE, or their figure with its name."""
    errors = sorted(score.gmae for score in members if score.gmae is not None)
    if errors:
        return f"{errors[0]:.1%} to {errors[-1]:.1%} ({errors[len(errors) // 2]:.1%})"
    figures = sorted((s.figure for s in members if s.figure), key=lambda figure: figure.value)
    if not figures:
        return ""
    least, most, middle = figures[0], figures[-1], figures[len(figures) // 2]
    texts = [str(replace(figure, name="")).strip() for figure in (least, most, middle)]
    return f"{least.name} {texts[0]} to {texts[1]} ({texts[2]})"


def _bar(score: Score) -> str:
    if not score.target:
        return ""
    return f"{score.target}: {'**missed**' if score.met is False else score.verdict}"


def _exposure(score: Score) -> str:
    return EXPOSURES.get(score.exposure, score.exposure)


def _row(*cells: str) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(cell: str) -> str:
    """Safe inside a table, with a space before every percent sign."""
    return re.sub(r"(?<=\d)%", " %", cell.replace("|", "/"))


def _others(scores: Sequence[Score]) -> dict[str, list[Score]]:
    """Other predictors' lines by the name of ours on the same rows."""
    found: dict[str, list[Score]] = {}
    for score in scores:
        if score.predictor:
            found.setdefault(score.same_rows_as, []).append(score)
    return found
