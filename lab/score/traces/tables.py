"""Rows of the traces' scores as tables or as JSON: runs, pairs of GPUs, rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from lab.score.traces.pairs import PairRow
from lab.score.traces.rows import RunRow
from stepsight.documents import to_json
from stepsight.trace.rules import RULES


def show_runs(found: Iterable[RunRow], *, as_json: bool) -> None:
    """Every run beside its predictions, as they are made."""
    if as_json:
        click.echo(to_json([row.document() for row in found]))
        return
    for row in found:
        click.echo(row.line())


def show_pairs(found: Sequence[PairRow], *, as_json: bool) -> None:
    """Every pair: a trace of one GPU moved to another whose trace exists."""
    if as_json:
        click.echo(to_json([msgspec.to_builtins(row) for row in found]))
        return
    for row in found:
        click.echo(row.line())


def show_rules(*, as_json: bool) -> None:
    """The table of rules."""
    if as_json:
        listed = [
            {**msgspec.to_builtins(rule), "on": rule.is_on(), "few_runs": rule.basis.few_runs}
            for rule in RULES.values()
        ]
        click.echo(to_json(listed))
        return
    for rule in RULES.values():
        state = "on" if rule.is_on() else "off"
        rests = rule.basis.rests_on + (" (fewer than three runs)" if rule.basis.few_runs else "")
        switch = "" if rule.off is None else ", can be switched off"
        click.echo(f"{rule.name} = {rule.value:g} {rule.unit} ({state}{switch}): {rule.says}")
        click.echo(f"    moves {rule.moves}; rests on {rests}")
