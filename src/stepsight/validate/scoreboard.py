"""The scoreboard: scores as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from stepsight.score import Score

BAR_MISSED = 1
"""Exit code where a score does not clear its bar."""


def show(scores: Sequence[Score], *, as_json: bool) -> None:
    """Print the scores; a missed bar is named as such and ends the command with code 1."""
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json([msgspec.to_builtins(score) for score in scores]))
    else:
        _print(scores)
    if any(score.met is False for score in scores):
        raise click.exceptions.Exit(BAR_MISSED)


def _print(scores: Sequence[Score]) -> None:
    from rich.table import Table
    from rich.text import Text

    from stepsight.terminal import terminal

    table = Table(box=None, padding=(0, 1))
    for name in ("topic", "what", "rows", "GMAE", "MAPE", "bar", "", "rows used"):
        table.add_column(name, justify="right" if name in ("rows", "GMAE", "MAPE") else "left")
    for s in scores:
        met = "" if s.met is None else "met" if s.met else Text("missed", style="red")
        note = f"{s.rows_used}; {s.note}" if s.note else s.rows_used
        table.add_row(s.topic, s.name, str(s.rows), f"{s.gmae:.2%}", f"{s.mape:.2%}", s.target, met, note)
    terminal().print(table)
    judged = [s for s in scores if s.met is not None]
    if judged:
        click.echo(f"{sum(bool(s.met) for s in judged)} of {len(judged)} bars met")
