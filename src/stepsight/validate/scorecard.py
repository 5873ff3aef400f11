"""The scorecard: docs/accuracy.md, made from the results of topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.score import Score
from stepsight.validate.results import TopicResult

EXPOSURES: Mapping[str, str] = {
    "blind": "blind",
    "chosen": "seen while tuning",
    "fit": "fitted",
    "": "see below",
}
"""Exposure of rows in words."""
USUAL: Mapping[str, str] = {
    "quick": "blind", "kernels": "chosen", "collectives": "blind", "embedding": "chosen",
    "overheads": "blind", "sharding": "blind", "e2e": "chosen", "traces": "chosen", "llm": "chosen",
    "tune": "chosen", "live": "blind", "capture": "chosen",
}  # fmt: skip
"""The exposure of a topic's lines that state none."""
MOST_LINES = 40
"""A topic with more lines is shown by kind; its command prints them all."""
HEAD = """# Accuracy

How far predictions are from measurements, topic by topic. This page is made by
`stepsight validate all` and `stepsight validate --report docs/accuracy.md`; every figure is reproduced by
its section's command. The measured tables are read from `--data DIR` or `STEPSIGHT_DATA`; without them
`stepsight validate quick` scores rows that ship with the package.

- **GMAE** is the geometric mean of the absolute relative errors (0.04 percentage points are added to each, so
  that zeros do not collapse it), **MAPE** their arithmetic mean.
- **exposure**: *blind* (used for no fit, constant or choice), *seen while tuning* (in no fit, but visible
  while models or constants were chosen), *fitted*.
- **others on these rows**: what other predictors reach on exactly these rows, as GMAE / MAPE.
"""


def scorecard(results: Sequence[TopicResult], *, notes: Path | None = None, version: str = "") -> str:
    """The page; ``notes`` is a folder with TOPIC.md, what is missed there and why."""
    parts = [HEAD]
    if version not in ("", "unknown"):
        parts.append(f"Made with stepsight {version}.\n")
    judged = [s for r in results for s in r.scores if s.met is not None]
    if judged:
        parts.append(f"{sum(bool(s.met) for s in judged)} of {len(judged)} bars are met.\n")
    parts += [_topic(result, notes) for result in results]
    return "\n".join(parts)


def _topic(result: TopicResult, notes: Path | None) -> str:
    lines = [f"## {result.topic}", "", f"`{result.command}` ({result.seconds:.0f} s)", ""]
    if result.scores:
        lines += _table(result)
    if result.other is not None:
        lines += _other(result.other)
    note = notes / f"{result.topic}.md" if notes else None
    if note and note.is_file():
        lines += ["", note.read_text(encoding="utf-8").strip()]
    return "\n".join(lines) + "\n"


def _table(result: TopicResult) -> list[str]:
    own, others = _with_others(result.scores)
    if len(own) > MOST_LINES:
        return _condensed(result, own)
    lines = [
        "| what | rows | GMAE | MAPE | bar | others on these rows | exposure |",
        "|---|---|---|---|---|---|---|",
    ]
    for score in own:
        bar = f"{score.target}: {'met' if score.met else '**missed**'}" if score.met is not None else ""
        beside = ", ".join(f"{name} {_pair(s)}" for name, s in others.get(score.name, []))
        seen = EXPOSURES.get(score.exposure or USUAL.get(result.topic, ""), score.exposure)
        what = score.name + (f" ({score.rows_used})" if score.rows_used else "")
        cells = (what, f"{score.rows:,}", f"{score.gmae:.1%}", f"{score.mape:.1%}", bar, beside, seen)
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    return lines


def _condensed(result: TopicResult, own: Sequence[Score]) -> list[str]:
    """A topic of many lines: one row per kind of line, then every bar that is missed."""
    kinds: dict[str, list[Score]] = {}
    for score in own:
        kinds.setdefault(_kind(score.name), []).append(score)
    lines = [
        "| what | lines | rows | GMAE, least to most (median) | bars met | exposure |",
        "|---|---|---|---|---|---|",
    ]
    for kind, members in kinds.items():
        errors = sorted(score.gmae for score in members)
        judged = [score for score in members if score.met is not None]
        met = f"{sum(bool(s.met) for s in judged)} of {len(judged)}" if judged else ""
        seen = {EXPOSURES.get(s.exposure or USUAL.get(result.topic, ""), s.exposure) for s in members}
        span = f"{errors[0]:.1%} to {errors[-1]:.1%} ({errors[len(errors) // 2]:.1%})"
        rows = f"{sum(score.rows for score in members):,}"
        cells = (kind, str(len(members)), rows, span, met, ", ".join(sorted(seen)))
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    missed = [score for score in own if score.met is False]
    if missed:
        lines += ["", "Missed, each line of the command:", ""]
        lines += [
            _plain(f"- {s.name}: {s.gmae:.1%} / {s.mape:.1%} ({s.rows:,} rows; bar {s.target})")
            for s in missed
        ]
    return lines


def _kind(name: str) -> str:
    """What lines of one kind share: the words before a colon, or before the GPU."""
    head, colon, rest = name.partition(": ")
    words = (rest if colon else head).split()
    if colon and words:
        return f"{head}: {words[0]}"
    both_ways = any(way in words for way in ("forward", "backward"))
    return " ".join(words[: 2 if both_ways and words[0] == "fp16" else 3])


def _plain(cell: str) -> str:
    """Safe inside a table, with a space before every percent sign."""
    return re.sub(r"(?<=\d)%", " %", cell.replace("|", "/"))


def _with_others(scores: Sequence[Score]) -> tuple[list[Score], dict[str, list[tuple[str, Score]]]]:
    """Our lines, and other predictors' on the same rows: those named ``<our line>: <predictor>``."""
    names = {score.name for score in scores}
    own: list[Score] = []
    others: dict[str, list[tuple[str, Score]]] = {}
    for score in scores:
        line, _, predictor = score.name.rpartition(": ")
        if line in names and predictor:
            others.setdefault(line, []).append((predictor, score))
        else:
            own.append(score)
    return own, others


def _pair(score: Score) -> str:
    return f"{score.gmae:.1%} / {score.mape:.1%}"


def _other(found: Any) -> list[str]:
    """A topic's own JSON: a record for each file or group, as a table."""
    if isinstance(found, Mapping) and all(isinstance(v, Mapping) for v in found.values()):
        records: list[dict[str, Any]] = [{"": name, **record} for name, record in found.items()]
    elif isinstance(found, list) and all(isinstance(v, Mapping) for v in found):
        records = [dict(record) for record in found]
    else:
        return ["```json", str(found), "```"]
    flat = [{k: v for k, v in r.items() if not isinstance(v, (Mapping, list))} for r in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(_cell(record.get(name)) for name in names) + " |" for record in flat]


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.1%}".replace("%", " %") if abs(value) < 1.5 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")
