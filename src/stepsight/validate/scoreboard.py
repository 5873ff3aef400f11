"""The scoreboard: scores as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from stepsight.documents import to_json
from stepsight.score import Score

BAR_MISSED = 1
"""Exit code where a score does not clear its bar."""


def show(scores: Sequence[Score], *, as_json: bool) -> None:
    """Print the scores; a missed bar is named as such and ends the command with code 1."""
    if as_json:
        click.echo(to_json(plain(scores)))
    else:
        table(scores)
    end(scores)


def plain(scores: Iterable[Score]) -> list[dict[str, object]]:
    """The scores as JSON has them."""
    return [msgspec.to_builtins(score) for score in scores]


def end(scores: Iterable[Score]) -> None:
    """End the command with code 1 where a bar is missed; a topic that prints by itself calls this last."""
    if any(score.met is False for score in scores):
        raise click.exceptions.Exit(BAR_MISSED)


def table(scores: Sequence[Score]) -> None:
    """The scores as a table, and how many bars are met."""
    from rich.text import Text

    from stepsight.terminal import listing, terminal

    figures = any(s.figure for s in scores)
    words = [*(["figure"] if figures else []), "bar", "", "rows used"]
    board = listing(("topic", "what", "rows", "GMAE", "MAPE", *words), (), left=("what", *words))
    for s in scores:
        verdict = Text("missed", style="red") if s.met is False else s.verdict
        note = f"{s.rows_used}; {s.note}" if s.note else s.rows_used
        errors = ("" if error is None else f"{100 * error:.2f} %" for error in (s.gmae, s.mape))
        figure = [str(s.figure or "")] if figures else []
        board.add_row(s.topic, s.name, str(s.rows), *errors, *figure, s.target, verdict, note)
    terminal().print(board)
    judged = [s for s in scores if s.met is not None]
    if judged:
        click.echo(f"{sum(bool(s.met) for s in judged)} of {len(judged)} bars met")
    undecided = sum(s.verdict == "open" for s in scores)
    if undecided:
        click.echo(f"{undecided} open: the rows are too few to decide")
