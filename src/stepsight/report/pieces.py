"""The pieces of every page that stepsight writes, and answers that a page and the terminal both show.

A page is one file that needs nothing else: styles and scripts are inside, it follows the
reader's light or dark preference, and all its text is escaped. Whatever is already HTML
has the type `Html`; every other text is escaped where it enters a piece. A `Listing` is described once and
shown on either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.resources import files

from click import get_current_context
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight import __version__, terminal
from stepsight.prediction.display import Look, time
from stepsight.terminal import COMMAND_LINE


class Html(str):
    """Text that is HTML already and goes into the page as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """One part of a bar: its word, its size, how the size reads, and its colour's class.

    The classes are those of ``assets/page.css`` without their ``c-``: gemm, embedding, …,
    communication, waiting, idle. ``room`` is the empty rest of a bar.
    """

    word: str
    value: float
    shown: str
    colour: str


def text(value: object) -> Html:
    """Anything as HTML: escaped, unless it is HTML already."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def joined(pieces: Iterable[object], between: str = "") -> Html:
    """Pieces one after another."""
    return Html(text(between).join(text(piece) for piece in pieces))


def tag(name: str, *content: object, classes: str = "") -> Html:
    """``<name class="classes">content</name>``."""
    attribute = f' class="{escape(classes)}"' if classes else ""
    return Html(f"<{name}{attribute}>{joined(content)}</{name}>")


def section(title: str, *content: object, lead: object = "") -> Html:
    """A part of the page under its title; ``lead`` is one sentence on how to read it."""
    intro = tag("p", lead, classes="lead") if lead else ""
    return tag("section", tag("h2", title), intro, *content)


def dot(colour: str) -> Html:
    """The colour's mark, for legends and tables."""
    return Html(f'<span class="dot c-{escape(colour)}" aria-hidden="true"></span>')


def named(colour: str, word: object) -> Html:
    """A word with its colour's mark before it."""
    return tag("span", dot(colour), tag("span", word), classes="named")


def bar(parts: Sequence[Fragment], *, total: float | None = None, name: str = "", thin: bool = False) -> Html:
    """A stacked bar; the parts fill it, or what they are of ``total``. Empty parts are left out."""
    filled = sum(part.value for part in parts)
    whole = max(filled, total or 0.0) or 1.0
    drawn = [_segment(part, part.value / whole, thin) for part in parts if part.value > 0]
    if whole > filled:
        drawn.append(Html(f'<i class="room" style="flex:{(whole - filled) / whole:.5f} 0 0"></i>'))
    listed = ", ".join(f"{part.word} {part.shown}" for part in parts if part.value > 0)
    label = escape(f"{name}: {listed}" if name else listed, quote=True)
    classes = "bar thin" if thin else "bar"
    return Html(f'<div class="{classes}" role="img" aria-label="{label}">{joined(drawn)}</div>')


def _segment(part: Fragment, share: float, thin: bool) -> Html:
    label = "" if thin else tag("b", part.word)
    hint = escape(f"{part.word}: {part.shown}", quote=True)
    return Html(f'<i class="c-{part.colour}" style="flex:{share:.5f} 0 0" title="{hint}">{label}</i>')


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """What colours mean: words with their colours."""
    return tag("ul", *(tag("li", named(colour, word)) for word, colour in entries), classes="legend")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[str] = ()) -> Html:
    """A table that scrolls by itself where the screen is too narrow for it. The first column and those named
    in ``left`` are words, those without a title bars, which get what room is left, all others numbers.
    Columns that are empty in every row are left out. On a narrow screen the last column goes below, if it
    holds sentences."""
    listed = list(rows)
    kept = filled(titles, listed)
    last = kept[-1]
    prose = titles[last] in left and len(kept) > 4 and _longest(listed, last) > LONG_CELL
    kinds = {i: "wide" if not titles[i] else "" if i == 0 or titles[i] in left else "num" for i in kept}
    kinds = {
        i: "num long" if k == "num" and _longest(listed, i) > LONG_NUMBER else k for i, k in kinds.items()
    }
    if _longest(listed, 0) > LONG_NAME:
        kinds[0] = "name"
    if prose:
        kinds[last] = "prose"
    classes = [f' class="{kinds[i]}"' if kinds[i] else "" for i in kept]
    head = joined(
        Html(f'<th scope="col"{c}>{text(titles[i])}</th>') for c, i in zip(classes, kept, strict=True)
    )
    body = joined(
        tag("tr", *(Html(f"<td{c}>{text(row[i])}</td>") for c, i in zip(classes, kept, strict=True)))
        for row in listed
    )
    whole_table = tag("table", tag("thead", tag("tr", head)), tag("tbody", body))
    ways = {"bars": "wide" in kinds.values() and len(kept) > 4, "dense": len(kept) > 9, "below": prose}
    names = " ".join(["scroll", *(name for name, holds in ways.items() if holds)])
    return Html(f'<div class="{names}" style="--figures:{len(kept) - prose}">{whole_table}</div>')


LONG_CELL, LONG_NAME, LONG_NUMBER = 24, 30, 9
"""Characters beyond which a cell at the end of a row is a sentence, and names and figures may be broken."""


def _longest(rows: Sequence[Sequence[object]], column: int) -> int:
    cells = (row[column] for row in rows)
    return max(
        (len(cell) for cell in cells if isinstance(cell, str) and not isinstance(cell, Html)), default=0
    )


def filled(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    """The columns that say something in some row; the first always counts."""
    return [
        i
        for i in range(len(titles))
        if not i or not rows or any(len(row) > i and row[i] != "" for row in rows)
    ]


def whole(line: str) -> Html:
    """Text that is never broken inside a word with a hyphen: a flag, a platform's name."""
    words = re.split(r"(\S*-\S+)", line)
    return joined(tag("span", word, classes="whole") if i % 2 else word for i, word in enumerate(words))


def headline(us: float, of: str = "") -> Html:
    """The step time in large figures."""
    value, unit = time(us).rsplit(" ", 1)
    return tag("div", value, " ", tag("small", f"{unit} per step{of}"), classes="number")


def searchable(name: str, content: Html, *, placeholder: str = "find") -> Html:
    """A table with a box that filters its rows (``assets/filter.js``)."""
    return Html(
        f'<input type="search" class="filter" placeholder="{placeholder}" '
        f'aria-label="{placeholder} in {name}" data-filter="list-{name}">'
        f'<div id="list-{name}" data-sortable>{content}</div>'
    )


def figures(entries: Iterable[tuple[str, str, str]]) -> Html:
    """The few numbers worth a glance: title, value, and what it means."""
    cells = (tag("div", tag("dt", n), tag("dd", value, tag("small", what))) for n, value, what in entries)
    return tag("dl", *cells, classes="figures")


def notes(lines: Sequence[str], *, shown: int = 12) -> Html:
    """A list, the tail of it folded away."""
    first = tag("ul", *(tag("li", whole(line)) for line in lines[:shown]), classes="notes")
    if len(lines) <= shown:
        return first
    rest = tag("ul", *(tag("li", whole(line)) for line in lines[shown:]), classes="notes")
    return joined([first, tag("details", tag("summary", f"{len(lines) - shown} more"), rest)])


def asset(name: str) -> str:
    """A style or script that ships next to this module."""
    return (files("stepsight.report") / "assets" / name).read_text(encoding="utf-8")


def term(word: str, shown: str = "") -> Html:
    """A word of the glossary, linked to its meaning at the foot of the page."""
    return Html(
        f'<a class="term" href="#{anchor(word)}" title="{escape(TERMS[word])}">{text(shown or word)}</a>'
    )


def warning(lead: object, lines: Sequence[str]) -> Html:
    """What a reader must not miss, with what to do about it."""
    helps = tag("ul", *(tag("li", whole(line)) for line in lines)) if lines else ""
    return tag("div", tag("span", lead, classes="bad"), helps, classes="warning")


def frame(title: str, top: Html, sections: Iterable[Html | None], *, scripts: Iterable[Html] = ()) -> str:
    """The whole file around a page's parts; its foot says which command made it, with which version, when."""
    pieces = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="generator" content="stepsight">',
        # Nothing may be fetched: the page says all it has to say by itself.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">",
        f'<link rel="icon" href="data:,">\n<title>{text(title)}</title>',
        f"<style>\n{asset('page.css')}</style>\n</head>\n<body>",
        f'<header class="top">{top}</header>',
        tag("main", *(part for part in sections if part)),
        tag("footer", _glossary(), _made(), classes="foot"),
        *scripts,
        f"<script>\n{asset('filter.js')}</script>",
        "</body>\n</html>\n",
    ]
    return "\n".join(pieces)


def _glossary() -> Html:
    entries = (
        joined([Html(f'<dt id="{anchor(word)}">{text(word)}</dt>'), tag("dd", meaning)])
        for word, meaning in TERMS.items()
    )
    return tag("details", tag("summary", "Words on this page"), tag("dl", *entries, classes="glossary"))


def _made() -> Html:
    context = get_current_context(silent=True)
    command = context.meta.get(COMMAND_LINE, "") if context else ""
    by = joined([" by ", tag("code", whole(command))]) if command else ""
    return tag("p", f"Made with stepsight {__version__} on {day()}", by, ".", classes="made")


def day() -> str:
    """Today, or the day that SOURCE_DATE_EPOCH states, so that builds can repeat."""
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    when = (
        datetime.fromtimestamp(int(stated), timezone.utc) if stated.isdigit() else datetime.now(timezone.utc)
    )
    return when.strftime("%Y-%m-%d")


TERMS: Mapping[str, str] = {
    "step time": "From the start of one training step to the start of the next, in the steady state.",
    "90 % interval": "The range that should hold 90 % of measurements of this step.",
    "rank": "One process with one GPU.",
    "host-bound": "The GPU is idle because the host has not launched the next kernel yet.",
    "launch overhead": "Host time spent between operators and on launching their kernels.",
    "overlap": "Compute and communication running at the same time on different streams.",
    "exposed communication": "Communication that overlaps no compute, from when the last rank has arrived. "
    "Waiting for other ranks is a figure of its own.",
    "straggler": "The rank that arrives last at a collective; the others wait for it.",
    "imbalance": "Compute time of the busiest rank over the mean of all ranks, minus one.",
    "contention": "Kernels that run at the same time slow each other down.",
    "step without it": "The step time when this part takes no time and everything else stays: "
    "an upper bound on what speeding it up can gain.",
    "sum of kernels": "The busiest stream's kernel times added up, without launches, waits and overlap.",
    "speed of light": "The least time that the GPU's peak FLOP/s and memory bandwidth allow (roofline).",
    "MFU": "Model FLOPs utilisation: the model's FLOPs (no recomputation) over what the GPUs could do at "
    "their dense peak in the same time.",
    "spread": "Standard deviation of ln(time): 0.05 is about ±5 %.",
    "similar GPU": "This GPU has no measurements; models fitted on others are scaled by the specifications.",
    "interpolation": "An answer between measured sizes.",
    "extrapolation": "An answer outside the measured sizes: the interval is wider.",
}
"""Term and meaning. docs/glossary.md is made of these (a test compares them)."""


def anchor(term: str) -> str:
    """The term's place on a page."""
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())


def markdown() -> str:
    """The glossary as a document."""
    lines = [
        f"- **{term}**: {meaning}" for term, meaning in sorted(TERMS.items(), key=lambda t: t[0].lower())
    ]
    return "# Glossary\n\nThe words of commands, pages and documents.\n\n" + "\n".join(lines) + "\n"


TERMINAL_COLOURS = {
    "gemm": "blue", "attention": "magenta", "embedding": "green", "vector": "cyan", "conv": "blue",
    "copy": "yellow", "optimizer": "bright_blue", "communication": "red", "waiting": "bright_red",
    "idle": "bright_black",
}  # fmt: skip
"""The terminal's colour of each colour class of a page."""
BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell that is drawn: parts of ``total``. ``width`` is that of the terminal's bar in characters."""

    parts: tuple[Fragment, ...]
    total: float
    name: str = ""
    width: int = BAR_WIDTH

    def blocks(self) -> Text:
        drawn, at, end = Text(), 0, 0.0
        for part in self.parts:
            end += part.value
            until = round(self.width * end / (self.total or 1.0))
            drawn.append("█" * (until - at), style=TERMINAL_COLOURS.get(part.colour, "white"))
            at = until
        return drawn if at else Text("▏", style=TERMINAL_COLOURS.get(self.parts[0].colour, "white"))

    def html(self) -> Html:
        return bar(self.parts, total=self.total, name=self.name, thin=True)


Cell = str | Bar | Look


@dataclass(frozen=True, slots=True)
class Listing:
    """A titled table. The first column is the name; those in ``left`` are words; bars have no title.

    ``lead`` says how to read it, on a page; ``below`` are sentences after it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Sequence[str] = ()
    lead: str = ""
    below: Sequence[str] = ()
    edge: bool = True

    def printed(self) -> Table:
        """The table for the terminal."""
        kept = filled(self.columns, self.rows)
        rows = [[_printed(row[i]) for i in kept if i < len(row)] for row in self.rows]
        left = (*self.left, "")
        return terminal.listing(
            [self.columns[i] for i in kept], rows, title=self.title, left=left, edge=self.edge
        )

    def html(self) -> Html:
        """The table for a page; what the colours of its bars mean stands below it."""
        bars = {i: cell for row in self.rows for i, cell in enumerate(row) if isinstance(cell, Bar)}
        columns = ["" if i in bars else name for i, name in enumerate(self.columns)]
        made = table(columns, [[_drawn(cell) for cell in row] for row in self.rows], left=self.left)
        meant = [(part.word, part.colour) for cell in bars.values() for part in cell.parts]
        return joined([made, legend(meant) if len(meant) > 1 else ""])

    def section(self) -> Html:
        """The part of a page that shows it."""
        below = [tag("p", whole(line)) for line in self.below]
        return section(self.title[:1].upper() + self.title[1:], self.html(), *below, lead=self.lead)


def _printed(cell: Cell) -> str | Text:
    if isinstance(cell, Bar):
        return cell.blocks()
    return cell.word if isinstance(cell, Look) else cell


def _drawn(cell: Cell) -> object:
    if isinstance(cell, Bar):
        return cell.html()
    return named(cell.colour, cell.word) if isinstance(cell, Look) else cell


@dataclass(frozen=True, slots=True)
class Report:
    """A title, sentences, then tables. Tables without rows are left out."""

    title: str
    lines: Sequence[str]
    listings: Sequence[Listing]

    def show(self, console: Console) -> None:
        """Print it."""
        console.print(Text(self.title, style="bold"))
        show_lines(self.lines, console)
        for one in self.listings:
            show_listing(one, console)

    def page(self) -> str:
        """The page of it."""
        lines = (tag("p", line[:1].upper() + line[1:], classes="verdict") for line in self.lines)
        top = joined([tag("h1", whole(self.title)), *lines])
        return frame(self.title, top, [one.section() for one in self.listings if one.rows])


def show_lines(lines: Iterable[str], console: Console) -> None:
    """Print sentences as they are."""
    for line in lines:
        console.print(Text(line))


def show_listing(one: Listing, console: Console) -> None:
    """Print a table and what stands below it."""
    if one.rows:
        console.print(one.printed())
        show_lines(one.below, console)
