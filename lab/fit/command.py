"""``python -m lab fit``: refit the shipped models from measured tables."""

from __future__ import annotations

import importlib

import click

SUBCOMMANDS = {
    "kernels": ("lab.fit.kernels.recipes", "Kernel models, from the measured kernel tables."),
    "embedding": ("lab.fit.embedding.command", "Lookups on GPUs."),
    "collectives": ("lab.fit.collectives.catalogue", "Collective curves, from nccl-tests style tables."),
    "overheads": ("lab.fit.overheads.shipped", "Host overheads, from studies and traces."),
    "traces": ("lab.fit.traces.fit", "Constants of trace predictions."),
    "anchoring": ("lab.fit.anchoring", "Exponents of anchoring, on operators of several GPUs."),
}
"""Subcommand → module that holds it as ``command``, and its help line. Loaded when called."""


class LazySubcommands(click.Group):
    """Shows every subcommand without importing what it fits with."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        found = importlib.import_module(SUBCOMMANDS[cmd_name][0]).command
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])


@click.group(cls=LazySubcommands)
def command() -> None:
    """Refit the shipped models from measured tables."""
