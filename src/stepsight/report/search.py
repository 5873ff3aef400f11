"""Searches and sweeps: the best with reasons, the front of time and memory, plots over what was varied."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from stepsight.platform.load import board_taken
from stepsight.prediction.breakdown import IDLE, WAITING
from stepsight.prediction.display import change, look
from stepsight.report.charts import Axis, Line, Point, compact, lines, points
from stepsight.report.pieces import (
    Fragment,
    Html,
    Listing,
    bar,
    frame,
    legend,
    notes,
    section,
    show_lines,
    show_listing,
    table,
    tag,
    whole,
)
from stepsight.terminal import UNBROKEN, counted
from stepsight.tuning.answer import Answer, Neighbour, part_word, settings_text, why
from stepsight.tuning.dimensions import short_name, short_names
from stepsight.tuning.flags import Flags
from stepsight.tuning.search import SURE, score, within_noise
from stepsight.tuning.trial import (
    BOUNDED,
    FAILED,
    ILLEGAL,
    PRICED,
    TOO_LARGE,
    Row,
    frameworks_of,
    setting_text,
)

WHY = "why (% of the best step)"
FOR_REASONS, FOR_INTERVALS = 48, 72
"""Room that the reasons need next to the figures, else they stand below the table; width of a terminal that
shows intervals and MFU."""
MOST_TIES = 5
"""Configurations that are too close to call and not in the table are listed up to here."""
WORDS = {TOO_LARGE: "does not fit", ILLEGAL: "refused"}
"""A row's status in words, where it is not its own."""

BETTER = {"time": "faster", "cost": "cheaper", "energy": "lower in energy", "memory": "smaller"}


INLINE = "workload"
"""The name of a workload that is given as a table, not as a file."""


def milliseconds(us: float) -> str:
    ms = us / 1e3
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def show_answer(answer: Answer, console: Console, written: Sequence[Flags] = ()) -> None:
    """The best, how sure, why, its neighbours, and the flags."""
    valid = counted(len(answer.rows), "valid configuration")
    console.print(f"{valid} on {answer.platform} in {answer.seconds:.1f} s: {outcomes(answer)}")
    framework = f"framework: {answer.framework} for all (training.framework); "
    console.print((framework if answer.framework else "") + order(answer))
    best = _best(answer, console.width)
    show_listing(best, console)
    if WHY not in best.columns:
        show_lines((f"{i}  {why(row, answer.best)}" for i, row in enumerate(answer.top, 1)), console)
    show_lines(remarks(answer), console)
    if answer.workload != INLINE:
        for place, row in enumerate(answer.top, 1):
            console.print(Text(f"{place}  {answer.predict_line(row)}"), soft_wrap=True)
    for one in written:
        about = [f"not the same configuration: {one.lacks}"] * bool(one.lacks) + [one.note] * bool(one.note)
        head = one.framework + (f" ({'; '.join(about)})" if about else "")
        console.print(Text(f"\n{head}:\n{one.text}" if one.text else f"\n{head}"), soft_wrap=True)


def _best(answer: Answer, width: int = UNBROKEN) -> Listing:
    """The table as far as a terminal of this ``width`` has room."""
    columns: dict[str, Callable[[Row], str]] = {"configuration": lambda r: settings_text(r.settings)}
    if len({r.ranks for r in answer.rows if r.ranks}) > 1:
        columns["GPUs"] = lambda r: f"{r.ranks:,}"
    columns |= {
        "step ms": lambda r: milliseconds(r.step_time_us),
        "90 % interval": lambda r: f"{milliseconds(r.low_us)}–{milliseconds(r.high_us)}",
        "memory": lambda r: f"{r.memory_gb:.0f} of {r.usable_gb:.0f} GB",
        "fits": lambda r: chance(r.fit),
        "MFU": lambda r: f"{100 * r.mfu:.1f} %" if r.mfu else "",
    }
    if (tokens := answer.tokens) is not None:
        columns["days"] = lambda r: f"{tokens / r.tokens_per_s / 86400:,.1f}" if r.tokens_per_s else ""
    columns |= _costs(answer.top)
    if answer.objective == "energy":
        columns["J/sample"] = lambda r: f"{(r.energy_j or 0) / (r.samples_per_s * r.step_time_us / 1e6):.4g}"
    if width < FOR_INTERVALS:
        del columns["90 % interval"], columns["MFU"]
    if width >= FOR_REASONS + sum(
        2 + max(len(name), len(shown(answer.best))) for name, shown in list(columns.items())[1:]
    ):
        columns[WHY] = lambda r: why(r, answer.best)
    rows = [
        (f"{place}{noise_mark(row, answer)}", *(shown(row) for shown in columns.values()))
        for place, row in enumerate(answer.top, 1)
    ]
    return Listing("", ("#", *columns), rows, ("configuration", WHY), edge=False)


def _costs(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """The columns of a known price."""
    if not any(r.cost_per_step for r in rows):
        return {}
    if any(r.tokens_per_s for r in rows):
        return {"cost/M tokens": lambda r: _money(r.cost_per_million_tokens)}
    return {"cost/step": lambda r: _money(r.cost_per_step)}


def order(answer: Answer) -> str:
    """By what the table is ordered, and what it leaves out."""
    first = {"time": "fastest", "cost": "cheapest", "energy": "least energy", "memory": "smallest"}
    return f"{first[answer.objective]} first, all fit with at least {100 * answer.min_fit:.0f} % (--min-fit)"


def outcomes(answer: Answer) -> str:
    """What became of the candidates, predicted ones first."""
    words = {PRICED: "predicted", TOO_LARGE: "do not fit", ILLEGAL: "refused", FAILED: "failed",
             BOUNDED: "skipped (a lower bound shows that they are slower)"}  # fmt: skip
    return ", ".join(f"{answer.counts[s]:,} {word}" for s, word in words.items() if answer.counts.get(s))


def noise_mark(row: Row, answer: Answer) -> str:
    """≈ where a row is too close to the best to call."""
    distinct = row is answer.best or not within_noise(row, answer.best, answer.objective)
    return "" if distinct else "≈"


def remarks(answer: Answer) -> list[str]:
    """Remarks below the table."""
    best, lines = answer.best, list[str]()
    if (batch := answer.document.get("global_batch")) and "global_batch" not in answer.dimensions:
        lines.append(f"global batch {batch:,}")
    if answer.tokens and best.tokens_per_s:
        seconds = answer.tokens / best.tokens_per_s
        hours = f"{best.ranks * seconds / 3600:,.0f} GPU-hours"
        million = best.cost_per_million_tokens
        cost = f", cost {million * answer.tokens / 1e6:,.0f}" if million is not None else ""
        run = f"{answer.tokens:,.0f} tokens: {long_time(seconds)} on {counted(best.ranks, 'GPU')}"
        lines.append(f"{run}, {hours}{cost}")
    if best.cost_per_step is not None:
        per_token = best.cost_per_million_tokens
        tokens = f", {per_token:.4g} per million tokens" if per_token is not None else ""
        price = 3.6e9 * best.cost_per_step / (best.ranks * best.step_time_us)
        lines.append(
            f"cost of the best: {best.cost_per_step:.4g} per step at {price:.4g} per GPU-hour{tokens}"
        )
    lines += _ties(answer)
    if answer.maybe is not None:
        faster = 1 - score(answer.maybe, answer.objective) / score(best, answer.objective)
        maybe = answer.maybe
        lines.append(
            f"left out, as it fits with less than {100 * answer.min_fit:.0f} %: "
            f"{settings_text(maybe.settings)}, {100 * faster:.1f} % {BETTER[answer.objective]} "
            f"({maybe.memory_gb:.0f} of {maybe.usable_gb:.0f} GB, fits with {chance(maybe.fit)}); "
            f"--min-fit {math.floor(20 * maybe.fit) / 20:g} lists it"
        )
    if answer.neighbours:
        what = answer.objective if answer.objective == "memory" else f"{answer.objective} per sample"
        lines.append(f"neighbours of the best ({what}): {'; '.join(map(_near, answer.neighbours))}")
    lines += [
        f"without a time: {reason} ({counted(n, 'configuration')})" for reason, n in answer.failures.items()
    ]
    return lines + [f"note: {line}" for line in board_taken(answer.platform)]


def _ties(answer: Answer) -> list[str]:
    """How many are too close to the best to call, and which of them the table does not show."""
    if not answer.ties:
        return []
    count = len(answer.ties)
    each = "measure it as well" if count == 1 else "measure them as well"
    lines = [f"≈ too close to the best to call: {counted(count, 'configuration')}; {each}."]
    shown = {settings_text(r.settings) for r in answer.top}
    others = [text for r in answer.ties if (text := settings_text(r.settings)) not in shown]
    if others:
        more = f"; and {len(others) - MOST_TIES:,} more in --json" if len(others) > MOST_TIES else ""
        lines.append(f"  not in the table: {'; '.join(others[:MOST_TIES])}{more}")
    return lines


def chance(fit: float) -> str:
    """A probability to fit; never certain."""
    return ">99 %" if fit > 0.99 else f"{100 * fit:.0f} %"


def _near(n: Neighbour) -> str:
    """A neighbour in words: how much slower, and whether it fits."""
    name = f"{short_name(n.dimension)} {setting_text(n.value)}: "
    if n.slower is None:
        return f"{name}{n.row.reason or n.row.status}"
    fits = "" if n.row.fit >= SURE else " (may not fit)" if n.row.fits else " (does not fit)"
    return f"{name}{change(n.slower, 1)}{fits}"


def long_time(seconds: float) -> str:
    """In the unit that people would use."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} seconds"


def show_rows(rows: Sequence[Row], console: Console) -> None:
    """A sweep's table."""
    show_listing(_rows(rows), console)


def _rows(rows: Sequence[Row]) -> Listing:
    """Every configuration; why some have no time stands below."""
    varied = list(dict.fromkeys(path for row in rows for path in row.settings))
    platforms = len({row.platform for row in rows}) > 1
    results = _results(rows)
    titles = [*(["platform"] if platforms else []), *short_names(varied).values(), *results]
    refused: dict[str, int] = {}
    listed = []
    for row in rows:
        cells = [*([row.platform] if platforms else []), *(str(row.settings.get(p, "")) for p in varied)]
        if row.priced:
            cells += [shown(row) for shown in results.values()]
        else:
            number = refused.setdefault(row.reason, len(refused) + 1)
            cells += [f"{WORDS.get(row.status, row.status)} [{number}]", *[""] * (len(results) - 1)]
        listed.append(cells)
    frameworks = frameworks_of(rows)
    below = [f"framework: {', '.join(frameworks)}"] if frameworks else []
    if len(frameworks) > 1 and "training.framework" not in varied:
        titles.append("framework")
        listed = [[*cells, row.framework] for cells, row in zip(listed, rows, strict=True)]
        below = ["rows differ in the framework too: --set framework=NAME compares them in one"]
    for path in dict.fromkeys(path for row in rows for path in row.chosen if path not in varied):
        if len({row.chosen.get(path) for row in rows if row.priced}) > 1:
            titles.append(short_name(path))
            listed = [
                [*cells, str(row.chosen.get(path, ""))] for cells, row in zip(listed, rows, strict=True)
            ]
            below.append(f"{short_name(path)}: chosen by what fits; --set {short_name(path)}=… fixes it")
    below += [f"[{number}] {reason}" for reason, number in refused.items()]
    names = dict.fromkeys(row.platform for row in rows)
    below += [f"note: {line}" for name in names for line in board_taken(name)]
    return Listing("", titles, listed, below=below, edge=False)


def _results(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """The columns of a priced row that some row has a figure for, each with how it reads."""
    found: dict[str, Callable[[Row], str]] = {
        "step ms": lambda r: milliseconds(r.step_time_us),
        "90 % interval": lambda r: f"{milliseconds(r.low_us)}–{milliseconds(r.high_us)}",
    }
    tokens, costs = any(r.tokens_per_s for r in rows), any(r.cost_per_step for r in rows)
    if tokens:
        found["tokens/s"] = lambda r: f"{r.tokens_per_s:,.0f}"
    elif any(r.samples_per_s for r in rows):
        found["samples/s"] = lambda r: f"{r.samples_per_s:,.0f}"
    found["MFU"] = lambda r: f"{100 * r.mfu:.1f} %" if r.mfu else ""
    found["memory GB"] = lambda r: (
        f"{r.memory_gb:.1f}" + ("" if r.fits else f" of {r.usable_gb:.0f}: does not fit")
    )
    if costs:
        found["cost/step"] = lambda r: _money(r.cost_per_step)
    if costs and tokens:
        found["cost/M tokens"] = lambda r: _money(r.cost_per_million_tokens)
    return found


def _money(cost: float | None) -> str:
    return "" if cost is None else f"{cost:.4g}"


def answer_document(answer: Answer, written: Sequence[Flags] = ()) -> dict[str, Any]:
    """Everything a script may want of a search."""
    return {
        "workload": answer.workload, "platform": answer.platform, "objective": answer.objective,
        "candidates": len(answer.rows), "counts": dict(answer.counts), "refused": dict(answer.refused),
        "seconds": answer.seconds,
        "top": [
            {**row_document(r), "why": why(r, answer.best),
             "predict": answer.predict_line(r),
             "within_noise": within_noise(r, answer.best, answer.objective)}
            for r in answer.top
        ],
        "framework": answer.framework, "min_fit": answer.min_fit, "ties": len(answer.ties),
        "too_close_to_call": [row_document(r) for r in answer.ties],
        "maybe": row_document(answer.maybe) if answer.maybe else None,
        "one_step_away": [
            {"dimension": n.dimension, "value": n.value, "slower": n.slower, "row": row_document(n.row)}
            for n in answer.neighbours
        ],
        "front": [row_document(r) for r in answer.front],
        "flags": {one.framework: {"text": one.text, "lacks": one.lacks, "note": one.note} for one in written},
    }  # fmt: skip


def row_document(row: Row) -> dict[str, Any]:
    return {**asdict(row), "fits": row.fits, "cost_per_million_tokens": row.cost_per_million_tokens}


def rows_csv(rows: Sequence[Row]) -> str:
    """One line a row, a column a field."""
    records = [row.record() for row in rows]
    columns = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


Figure = Callable[[Row], float]
"""What a plot shows of a row."""
BANDS = "Pale bands are 90 % intervals."
EXPOSED_COLOURS = {
    "tensor": "comm-tensor", "shard": "comm-shard", "data": "comm-shard", "pipeline": "comm-pipeline",
    "expert": "comm-expert", "context": "comm-context",
}  # fmt: skip
"""Exposed communication by axis of parallelism: warm colours, and stripes of them."""

COMPUTE, COMMUNICATION, BUBBLE, HOST_BOUND = "compute", "communication", "pipeline bubble", "host"
LIMITS = 0.2
"""The share of a step from which something other than compute counts as what limits it."""
LIMIT_COLOURS = {COMPUTE: "gemm", COMMUNICATION: "communication", BUBBLE: "copy", HOST_BOUND: "total"}


def tune_page(answer: Answer, written: Sequence[Flags] = ()) -> str:
    """A search: the best, why, the front of time and memory, and the flags."""
    best = answer.best
    among = f"the best of {len(answer.rows):,} valid configurations of {answer.workload} on {answer.platform}"
    among += f", framework {answer.framework}" if answer.framework else ""
    among += f"; {order(answer)}"
    title = f"{milliseconds(best.step_time_us)} ms per step: {settings_text(best.settings)}"
    top = tag("div", tag("h1", title), tag("p", whole(among)))
    return frame(
        f"stepsight tune: {answer.workload}",
        Html(top),
        [
            section("The best", _best(answer).html(), notes(remarks(answer))),
            section("Side by side", _side_by_side(answer), lead="Where each step goes, to one scale."),
            section(
                "Time and memory", _front(answer),
                lead="Every priced configuration; the dashed front joins those that no other beats in both.",
            ),
            section("Commands", *(tag("p", tag("code", whole(answer.predict_line(r)))) for r in answer.top))
            if answer.workload != INLINE else Html(""),
            section("Flags", *(_flags(one) for one in written)) if written else Html(""),
        ],
    )  # fmt: skip


def _side_by_side(answer: Answer) -> Html:
    longest = max(r.step_time_us for r in answer.top)
    names = dict.fromkeys(name for r in answer.top for name in r.shares)
    words = {n: part_word(n) if n.startswith("exposed") else look(n).word for n in names}
    meant = dict.fromkeys((word, _colour(name)) for name, word in words.items())
    return tag("div", *(_bar(r, longest) for r in answer.top), legend(meant))


def _bar(row: Row, longest: float) -> Html:
    taken = {name: part * row.step_time_us for name, part in row.shares.items()}
    parts = [
        Fragment(part_word(name), us, f"{milliseconds(us)} ms", _colour(name)) for name, us in taken.items()
    ]
    title = f"{settings_text(row.settings)}: {milliseconds(row.step_time_us)} ms"
    return tag("div", tag("p", title), bar(parts, total=longest, name=title), classes="pick")


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
    text = tag("pre", whole(one.text)) if one.text else Html("")
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
    top = tag("div", tag("h1", f"{workload}: {counted(len(rows), 'configuration')}"))
    listed = replace(_rows(rows), title="rows")
    return frame(f"stepsight sweep: {workload}", top, [*plots, listed.section()])


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
