"""Two configurations beside each other: what differs, and where the time between them goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepsight.report.page.pieces import Html, asset, tag, text
from stepsight.report.tune.console import milliseconds
from stepsight.tune.answer import Answer, part_word, setting_text, settings_text
from stepsight.tune.dimensions import short_names
from stepsight.tune.trial import Row

LEAST_SHARE = 0.0005
"""Parts of a step below this share of it are left out."""
MOST = 40
"""Configurations that can be chosen on the page: the best, then the front."""


def choices(answer: Answer) -> list[Row]:
    """What a reader may compare, each once."""
    listed = [*answer.top, *(r for r in answer.front if r not in answer.top)]
    return listed[:MOST]


def two_picks(answer: Answer) -> Html:
    """A table of two configurations; the first and the second best until others are chosen."""
    rows = choices(answer)
    if len(rows) < 2:
        return tag("p", "There is only one configuration to show.")
    menus = "".join(_menu(rows, chosen, name) for chosen, name in ((0, "one"), (1, "other")))
    lines = "".join(f"<tr><td>{text(title)}</td>{cells}</tr>" for title, cells in _lines(rows[0], rows[1]))
    return Html(
        f'<div class="scroll"><table id="picks"><thead><tr><th scope="col"></th>{menus}'
        f'<th scope="col" class="num">difference</th></tr></thead><tbody>{lines}</tbody></table></div>'
    )


def picks_script(answer: Answer) -> list[Html]:
    """What the menus choose from, and the script that fills the table anew."""
    rows = choices(answer)
    if len(rows) < 2:
        return []
    safe = msgspec.json.encode([_content(row) for row in rows]).decode().replace("<", "\\u003c")
    data = f'<script type="application/json" id="picks-data">{safe}</script>'
    return [Html(f"{data}<script>\n{asset('picks.js')}</script>")]


def _menu(rows: Sequence[Row], chosen: int, name: str) -> str:
    options = "".join(
        f'<option value="{i}"{" selected" if i == chosen else ""}>{text(settings_text(r.settings))}</option>'
        for i, r in enumerate(rows)
    )
    return f'<th scope="col" class="num"><select id="pick-{name}" aria-label="{name}">{options}</select></th>'


def _content(row: Row) -> dict[str, Any]:
    """A row as the script reads it: settings as words, figures in the order of the table."""
    return {"settings": _settings(row), "figures": _figures(row), "parts": _parts(row)}


def _settings(row: Row) -> dict[str, str]:
    names = short_names(row.settings)
    return {names[path]: setting_text(value) for path, value in row.settings.items()}


def _figures(row: Row) -> dict[str, float | None]:
    return {
        "step ms": row.step_time_us / 1e3,
        "memory GB": row.memory_gb,
        "MFU %": 100 * row.mfu if row.mfu else None,
        "cost per 1,000 steps": None if row.cost_per_step is None else 1e3 * row.cost_per_step,
    }


def _parts(row: Row) -> dict[str, float]:
    """Milliseconds by part of the step."""
    return {
        part_word(name): share * row.step_time_us / 1e3
        for name, share in row.shares.items()
        if share >= LEAST_SHARE
    }


def _lines(one: Row, other: Row) -> list[tuple[str, str]]:
    """Settings that differ, figures, and the parts of the step by how much they differ."""
    found = []
    mine, theirs = _settings(one), _settings(other)
    for name in dict.fromkeys((*mine, *theirs)):
        if mine.get(name) != theirs.get(name):
            found.append((name, _cells(mine.get(name, "–"), theirs.get(name, "–"), "")))
    for name, value in _figures(one).items():
        found += _compared(name, value, _figures(other)[name])
    a, b = _parts(one), _parts(other)
    names = sorted({*a, *b}, key=lambda n: -abs(b.get(n, 0.0) - a.get(n, 0.0)))
    for name in names:
        found += _compared(f"{name} ms", a.get(name, 0.0), b.get(name, 0.0))
    return found


def _compared(name: str, one: float | None, other: float | None) -> list[tuple[str, str]]:
    if one is None or other is None:
        return []
    return [(name, _cells(_shown(one), _shown(other), f"{_sign(other - one)}{_shown(abs(other - one))}"))]


def _sign(value: float) -> str:
    return "+" if value > 0 else "−" if value < 0 else ""


def _shown(value: float) -> str:
    return milliseconds(1e3 * value)


def _cells(*values: str) -> str:
    return "".join(f'<td class="num">{text(v)}</td>' for v in values)
