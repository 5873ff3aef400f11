"""``stepsight validate``: predictions against measurements that anybody can check."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands.options import (
    PLATFORM_HELP,
    PLATFORM_SET_HELP,
    check_outputs,
    command_line,
    complete_platform,
    platform_assignments,
    print_written,
    write_files,
)

RUNS = "RUNS.csv -p PLATFORM"
TOPICS = {
    "quick": "Rows that ship with the package: a first check in under a minute.",
    "live": "Random models, predicted, then trained here.",
}
RUNS_HELP = "Your own runs, each predicted without learning and with the others learned from."


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0].endswith(".csv"):
            return "runs", _runs, args
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Topics"):
            formatter.write_dl([*TOPICS.items(), (RUNS, RUNS_HELP)])


@click.group("validate", cls=Topics)
def command() -> None:
    """Score predictions against measurements."""


@click.command("quick", help=TOPICS["quick"])
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _quick(as_json: bool) -> None:
    from stepsight.validate.quick.topic import scores
    from stepsight.validate.scoreboard import show

    show(scores(), as_json=as_json)


@click.command("runs", help=RUNS_HELP)
@click.argument("runs", type=click.Path(path_type=Path))
@click.option(
    "--platform", "-p", "platform", required=True, help=PLATFORM_HELP, shell_complete=complete_platform
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=PLATFORM_SET_HELP)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _runs(runs: Path, platform: str, overrides: tuple[str, ...], html: Path | None, as_json: bool) -> None:
    from stepsight.prediction.learn.lesson import validate_runs

    check_outputs([html])
    fix = "a field of a workload is a column of the file"
    found = validate_runs(runs, platform, platform_assignments(overrides, str(runs), fix))
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json(found.to_dict()))
    else:
        from stepsight.report.console.runs import show_validation
        from stepsight.terminal import terminal

        show_validation(found, terminal())
    if html:
        from stepsight.report.page.runs import validation_page

        written = write_files([(html, validation_page(found, command=command_line()))])
        if not as_json:
            print_written(written)
