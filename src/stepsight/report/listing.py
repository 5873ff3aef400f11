"""An answer described once, as titled tables and sentences, which the terminal and a page show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight import terminal
from stepsight.report.pieces import Fragment, Html, bar, frame, joined, legend, named, section, table, tag

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


@dataclass(frozen=True, slots=True)
class Named:
    """A word with its colour."""

    word: str
    colour: str


Cell = str | Bar | Named


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
        rows = [[_printed(cell) for cell in row] for row in self.rows]
        left = (*self.left, "")
        return terminal.listing(self.columns, rows, title=self.title, left=left, edge=self.edge)

    def html(self) -> Html:
        """The table for a page; what the colours of its bars mean stands below it."""
        bars = {i: cell for row in self.rows for i, cell in enumerate(row) if isinstance(cell, Bar)}
        columns = ["" if i in bars else name for i, name in enumerate(self.columns)]
        made = table(columns, [[_drawn(cell) for cell in row] for row in self.rows], left=self.left)
        meant = [(part.word, part.colour) for cell in bars.values() for part in cell.parts]
        return joined([made, legend(meant) if len(meant) > 1 else ""])

    def section(self) -> Html:
        """The part of a page that shows it."""
        below = [tag("p", line) for line in self.below]
        return section(self.title[:1].upper() + self.title[1:], self.html(), *below, lead=self.lead)


def _printed(cell: Cell) -> str | Text:
    if isinstance(cell, Bar):
        return cell.blocks()
    return cell.word if isinstance(cell, Named) else cell


def _drawn(cell: Cell) -> object:
    if isinstance(cell, Bar):
        return cell.html()
    return named(cell.colour, cell.word) if isinstance(cell, Named) else cell


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
        top = joined([tag("h1", self.title), *(tag("p", line, classes="verdict") for line in self.lines)])
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
