"""``stepsight validate``: predictions against measurements that anybody can check."""

from __future__ import annotations

import click

TOPICS = {
    "quick": "Rows that ship with the package: a first check in under a minute.",
    "live": "Random models, predicted, then trained here.",
}


class Topics(click.Group):
    """Loads a topic's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TOPICS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "quick":
            return _quick
        if cmd_name == "live":
            from stepsight.validate.live.topic import command as live

            return live
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Topics"):
            formatter.write_dl(list(TOPICS.items()))


@click.group("validate", cls=Topics)
def command() -> None:
    """Score predictions against measurements."""


@click.command("quick", help=TOPICS["quick"])
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _quick(as_json: bool) -> None:
    from stepsight.validate.quick.topic import scores
    from stepsight.validate.scoreboard import show

    show(scores(), as_json=as_json)
