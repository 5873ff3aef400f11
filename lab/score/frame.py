"""What every topic prints: lines for people, and an object keyed by file for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from stepsight.score import Score
from stepsight.validate.scoreboard import end, plain, table

Figures = Mapping[str, Any]
"""By file (without its ending): how many rows it has, and how far predictions are from them."""


def show(scores: Sequence[Score], figures: Figures | None = None, *, as_json: bool) -> None:
    """Print a topic: with ``--json`` its files and, under ``scores``, its lines; a missed bar is code 1."""
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json({**(figures or {}), "scores": plain(scores)}))
    else:
        table(scores)
    end(scores)
