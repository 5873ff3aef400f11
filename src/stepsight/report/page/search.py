"""Searches and sweeps as one page: the front, the best side by side, and plots over what was varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stepsight.prediction.breakdown import IDLE, WAITING
from stepsight.prediction.display import look
from stepsight.report.console.search import WHY, milliseconds, noise_mark, remarks
from stepsight.report.page.charts import Axis, Line, Point, compact, lines, points
from stepsight.report.page.pieces import (
    Column,
    Fragment,
    Html,
    asset,
    bar,
    frame,
    legend,
    notes,
    section,
    table,
    tag,
    text,
)
from stepsight.tune.answer import Answer, part_word, setting_text, settings_text, why
from stepsight.tune.dimensions import short_name, short_names
from stepsight.tune.flags import Flags
from stepsight.tune.trial import Row, frameworks_of

Figure = Callable[[Row], float]
"""What a plot shows of a row."""
BANDS = "Pale bands are 90 % intervals."
EXPOSED_COLOURS = {
    "tensor": "comm-tensor", "shard": "comm-shard", "data": "comm-shard", "pipeline": "comm-pipeline",
}  # fmt: skip
"""Exposed communication by axis of parallelism: shades of one colour."""
COMPUTE, COMMUNICATION, BUBBLE, HOST_BOUND = "compute", "communication", "pipeline bubble", "host"
LIMITS = 0.2
"""The share of a step from which something other than compute counts as what limits it."""
LIMIT_COLOURS = {COMPUTE: "gemm", COMMUNICATION: "communication", BUBBLE: "copy", HOST_BOUND: "idle"}


def tune_page(answer: Answer, written: Sequence[Flags] = (), *, command: str = "") -> str:
    """A search: the best, why, the front of time and memory, and the flags."""
    best = answer.best
    among = f"the best of {len(answer.rows):,} valid configurations of {answer.workload} on {answer.platform}"
    among += f", framework {answer.framework}" if answer.framework else ""
    title = f"{milliseconds(best.step_time_us)} ms per step: {settings_text(best.settings)}"
    top = tag("div", tag("h1", title), tag("p", among))
    return frame(
        f"stepsight tune: {answer.workload}",
        Html(top),
        [
            section("The best", _best(answer), notes(remarks(answer))),
            section("Side by side", _side_by_side(answer), lead="Where each step goes, to one scale."),
            section(
                "Two picks", two_picks(answer),
                lead="Choose any two of the best and of the front; the largest difference comes first.",
            ),
            section(
                "Time and memory", _front(answer),
                lead="Every priced configuration; the dashed front joins those that no other beats in both.",
            ),
            section("Flags", *(_flags(one) for one in written)) if written else Html(""),
        ],
        scripts=picks_script(answer),
        command=command,
    )  # fmt: skip


def _best(answer: Answer) -> Html:
    columns = [
        Column("", number=True), Column("configuration", wide=True), Column("step ms", number=True),
        Column("90 % interval", number=True, extra=True), Column("memory GB", number=True),
        Column("MFU", number=True, extra=True), Column(WHY, extra=True),
    ]  # fmt: skip
    rows = [
        (
            f"{place}{noise_mark(r, answer)}", settings_text(r.settings), milliseconds(r.step_time_us),
            f"{milliseconds(r.low_us)}–{milliseconds(r.high_us)}", f"{r.memory_gb:.0f}",
            f"{100 * r.mfu:.1f} %" if r.mfu else "", why(r, answer.best),
        )
        for place, r in enumerate(answer.top, 1)
    ]  # fmt: skip
    return table(columns, rows)


def _side_by_side(answer: Answer) -> Html:
    longest = max(r.step_time_us for r in answer.top)
    meant = dict.fromkeys((_kind(name), _colour(name)) for r in answer.top for name in r.shares)
    key = legend(Fragment(kind, 0, "", colour) for kind, colour in meant)
    return tag("div", *(_bar(r, longest) for r in answer.top), key)


def _bar(row: Row, longest: float) -> Html:
    parts = [
        Fragment(
            part_word(name),
            share * row.step_time_us,
            f"{milliseconds(share * row.step_time_us)} ms",
            _colour(name),
        )
        for name, share in row.shares.items()
    ]
    title = f"{settings_text(row.settings)}: {milliseconds(row.step_time_us)} ms"
    return tag("div", tag("p", title), bar(parts, total=longest, name=title), classes="pick")


def _kind(name: str) -> str:
    """What a colour stands for."""
    return part_word(name) if name.startswith("exposed") else look(name).word


def _colour(name: str) -> str:
    if name.startswith("exposed"):
        return EXPOSED_COLOURS.get(name.removeprefix("exposed").strip(), "comm-other")
    return look(name).colour


def limited_by(row: Row) -> str:
    """The largest of compute, exposed communication, waiting for other stages and the host."""
    found = {COMMUNICATION: 0.0, BUBBLE: row.shares.get(WAITING, 0.0), HOST_BOUND: row.shares.get(IDLE, 0.0)}
    found[COMMUNICATION] = sum(part for name, part in row.shares.items() if name.startswith("exposed"))
    worst = max(found, key=lambda name: found[name])
    return worst if found[worst] >= LIMITS else COMPUTE


def _front(answer: Answer) -> Html:
    front = sorted((_point(r) for r in answer.front), key=lambda p: p.x)
    priced = [r for r in answer.rows if r.priced]
    by_limit = [
        Line(f"limited by {name}", tuple(_point(r) for r in priced if limited_by(r) == name), colour)
        for name, colour in LIMIT_COLOURS.items()
    ]
    usable = max((r.usable_gb for r in priced), default=0.0)
    drawn = points(
        [line for line in by_limit if line.points], front, Axis("step time (ms)"), Axis("memory (GB)"),
        name="step time and memory of every configuration",
        limit=(usable, f"{usable:.0f} GB usable") if usable else None,
    )  # fmt: skip
    columns = [
        Column("configuration", wide=True),
        Column("step ms", number=True),
        Column("memory GB", number=True),
    ]
    listed = [
        (settings_text(r.settings), milliseconds(r.step_time_us), f"{r.memory_gb:.1f}") for r in answer.front
    ]
    return tag("div", drawn, table(columns, listed))


def _point(row: Row) -> Point:
    step_ms = row.step_time_us / 1e3
    return Point(
        step_ms,
        row.memory_gb,
        hint=f"{settings_text(row.settings)}: {step_ms:,.1f} ms, {row.memory_gb:.1f} GB",
    )


def _flags(one: Flags) -> Html:
    lacks = tag("p", f"Not the same configuration: {one.lacks}.") if one.lacks else Html("")
    note = tag("p", one.note) if one.note else Html("")
    text = tag("pre", one.text) if one.text else Html("")
    return tag("div", tag("h3", one.framework), lacks, note, text)


def sweep_page(rows: Sequence[Row], workload: str, *, command: str = "") -> str:
    """A sweep: plots over what was varied, and the table."""
    varied = list(dict.fromkeys(path for row in rows for path in row.settings))
    platforms = len({r.platform for r in rows}) > 1
    priced = [r for r in rows if r.priced]
    along = varied[0] if varied else "platform"
    plots = [
        section(title, _plot(priced, along, figure, power, platforms, unit or title), lead=BANDS)
        for title, unit, figure, power in _figures(priced)
    ]
    frameworks = ", ".join(frameworks_of(rows))
    named = [tag("p", f"framework: {frameworks}")] if frameworks else []
    top = tag("div", tag("h1", f"{workload}: {len(rows):,} configurations"), *named)
    return frame(
        f"stepsight sweep: {workload}",
        Html(top),
        [*plots, section("Rows", _rows(rows, varied, platforms))],
        command=command,
    )


def _figures(rows: Sequence[Row]) -> list[tuple[str, str, Figure, int]]:
    """Title, unit, value, and the power of the step time with which the value grows."""
    found: list[tuple[str, str, Figure, int]] = [("Step time", "ms", lambda r: r.step_time_us / 1e3, 1)]
    if any(r.tokens_per_s for r in rows):
        found.append(("Tokens per second", "tokens/s", lambda r: r.tokens_per_s, -1))
    elif any(r.samples_per_s for r in rows):
        found.append(("Samples per second", "samples/s", lambda r: r.samples_per_s, -1))
    if any(r.mfu for r in rows):
        found.append(("MFU", "%", lambda r: 100 * r.mfu, -1))
    if any(r.cost_per_step is not None for r in rows):
        found.append(("Cost per step", "", lambda r: r.cost_per_step or 0.0, 1))
    if any(r.cost_per_million_tokens is not None for r in rows):
        found.append(("Cost per million tokens", "", lambda r: r.cost_per_million_tokens or 0.0, 1))
    return found


def _plot(rows: Sequence[Row], along: str, figure: Figure, power: int, platforms: bool, title: str) -> Html:
    """One line for every combination of what is not on the x axis, with its 90 % interval."""
    places = list(dict.fromkeys(_place(row, along) for row in rows))
    found: dict[str, list[Point]] = {}
    for row in rows:
        rest = {p: v for p, v in row.settings.items() if p != along}
        names = [*([row.platform] if platforms and along != "platform" else []), settings_text(rest)]
        name = ", ".join(n for n in names if n)
        value = figure(row)
        low, high = sorted(value * (us / row.step_time_us) ** power for us in (row.low_us, row.high_us))
        hint = f"{name or 'step'}, {short_name(along)} {_place(row, along)}: {value:,.4g}"
        hint += f" (90 % interval {low:,.4g} to {high:,.4g})"
        found.setdefault(name, []).append(Point(places.index(_place(row, along)), value, low, high, hint))
    x = Axis(short_name(along), names=tuple(places))
    drawn = [Line(name, tuple(listed)) for name, listed in found.items()]
    return lines(drawn, x, Axis(title, compact), name=title)


def _place(row: Row, along: str) -> str:
    return row.platform if along == "platform" else str(row.settings.get(along, ""))


def _rows(rows: Sequence[Row], varied: Sequence[str], platforms: bool) -> Html:
    columns = [
        *([Column("platform")] if platforms else []),
        *(Column(name, number=True) for name in short_names(varied).values()),
        Column("step ms", number=True), Column("90 % interval", number=True, extra=True),
        Column("per second", number=True), Column("memory GB", number=True, extra=True),
        Column("", wide=True),
    ]  # fmt: skip
    listed = []
    for r in rows:
        head = [*([r.platform] if platforms else []), *(r.settings.get(p, "") for p in varied)]
        if r.priced:
            cells = [
                milliseconds(r.step_time_us), f"{milliseconds(r.low_us)}–{milliseconds(r.high_us)}",
                f"{r.tokens_per_s or r.samples_per_s:,.0f}" if r.tokens_per_s or r.samples_per_s else "",
                f"{r.memory_gb:.1f}", "" if r.fits else f"does not fit into {r.usable_gb:.0f} GB",
            ]  # fmt: skip
        else:
            cells = ["", "", "", "", f"{r.status}: {r.reason}"]
        listed.append((*head, *cells))
    return table(columns, listed)


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
    return {"settings": _settings(row), "figures": _pick_figures(row), "parts": _parts(row)}


def _settings(row: Row) -> dict[str, str]:
    names = short_names(row.settings)
    return {names[path]: setting_text(value) for path, value in row.settings.items()}


def _pick_figures(row: Row) -> dict[str, float | None]:
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
    for name, value in _pick_figures(one).items():
        found += _compared(name, value, _pick_figures(other)[name])
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
