"""Searches and sweeps as one page: the front, the best side by side, and plots over what was varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepsight.prediction.breakdown import IDLE, WAITING
from stepsight.prediction.display import look
from stepsight.report.console.search import WHY, chance, milliseconds, noise_mark, remarks
from stepsight.report.page.charts import Axis, Line, Point, compact, lines, points
from stepsight.report.page.pieces import (
    Fragment,
    Html,
    bar,
    frame,
    legend,
    notes,
    section,
    table,
    tag,
)
from stepsight.tune.answer import Answer, part_word, settings_text, why
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


def tune_page(answer: Answer, written: Sequence[Flags] = ()) -> str:
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
                "Time and memory", _front(answer),
                lead="Every priced configuration; the dashed front joins those that no other beats in both.",
            ),
            section("Flags", *(_flags(one) for one in written)) if written else Html(""),
        ],
    )  # fmt: skip


NARROW = "\u00a0%"
"""A percent sign that stays with its number."""


def _best(answer: Answer) -> Html:
    titles = ("#", "configuration", "step ms", "90 % interval", "memory GB", "fits", "MFU", WHY)
    rows = [
        (
            f"{place}{noise_mark(r, answer)}", settings_text(r.settings), milliseconds(r.step_time_us),
            f"{milliseconds(r.low_us)}–{milliseconds(r.high_us)}", f"{r.memory_gb:.0f}",
            chance(r.fit), f"{100 * r.mfu:.1f} %" if r.mfu else "", why(r, answer.best).replace(" %", NARROW),
        )
        for place, r in enumerate(answer.top, 1)
    ]  # fmt: skip
    return table(titles, rows, left=("configuration", WHY))


def _side_by_side(answer: Answer) -> Html:
    longest = max(r.step_time_us for r in answer.top)
    meant = dict.fromkeys((_kind(name), _colour(name)) for r in answer.top for name in r.shares)
    return tag("div", *(_bar(r, longest) for r in answer.top), legend(meant))


def _bar(row: Row, longest: float) -> Html:
    taken = {name: part * row.step_time_us for name, part in row.shares.items()}
    parts = [
        Fragment(part_word(name), us, f"{milliseconds(us)} ms", _colour(name)) for name, us in taken.items()
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
    listed = [
        (settings_text(r.settings), milliseconds(r.step_time_us), f"{r.memory_gb:.1f}") for r in answer.front
    ]
    return tag("div", drawn, table(("configuration", "step ms", "memory GB"), listed))


def _point(row: Row) -> Point:
    step_ms = row.step_time_us / 1e3
    hint = f"{settings_text(row.settings)}: {step_ms:,.1f} ms, {row.memory_gb:.1f} GB"
    return Point(step_ms, row.memory_gb, hint=hint)


def _flags(one: Flags) -> Html:
    lacks = tag("p", f"Not the same configuration: {one.lacks}.") if one.lacks else Html("")
    note = tag("p", one.note) if one.note else Html("")
    text = tag("pre", one.text) if one.text else Html("")
    return tag("div", tag("h3", one.framework), lacks, note, text)


def sweep_page(rows: Sequence[Row], workload: str) -> str:
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
    titles = [
        *(["platform"] if platforms else []), *short_names(varied).values(), "step ms", "90 % interval",
        "per second", "memory GB", "note",
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
    return table(titles, listed, left=("note",))
