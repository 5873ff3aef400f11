"""What every topic prints: lines for people, and an object keyed by file for scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stepsight.score import Figure, Score
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


COVERAGE = (0.85, 0.95)
"""What share of left-out rows a 90 % interval is to hold."""
BY_CHANCE = 0.05
"""A share is not held against an interval where chance alone makes one as extreme this often."""


def interval_score(
    topic: str, name: str, inside: int, rows: int, rows_used: str, *, exposure: str, note: str = ""
) -> Score:
    """Whether 90 % intervals hold 85–95 % of their rows.

    Met: the share lies there. Missed: it does not, and even intervals that truly hold 85 (or 95) % would show
    so small (or large) a share in less than 5 % of cases. Open: it does not, but chance may have done it.
    """
    share, (low, high) = inside / rows, COVERAGE
    odd = min(_at_most(inside, rows, low), _at_most(rows - inside, rows, 1 - high))
    met = True if low <= share <= high else False if odd < BY_CHANCE else None
    held = f"{inside} of {rows} inside"
    chance = "" if met else f"by chance in {odd:.0%} of cases"
    return Score.reading(
        topic, name, rows, Figure("inside", share, ""), rows_used, exposure=exposure,
        target=f"{low:.0%} to {high:.0%}", met=met, note="; ".join(filter(None, (held, chance, note))),
    )  # fmt: skip


def _at_most(count: int, rows: int, share: float) -> float:
    """The chance of at most this many of the rows, each with a probability of ``share``."""
    logs = (
        math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1)
        + k * math.log(share) + (rows - k) * math.log1p(-share)
        for k in range(count + 1)
    )  # fmt: skip
    return min(math.fsum(map(math.exp, logs)), 1.0)
