"""``stepsight validate``: predictions against measurements that anybody can check."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands import options

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
            from stepsight.validate.live import command as live

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
@options.json_flag
def _quick(as_json: bool) -> None:
    from stepsight.validate.quick import scores
    from stepsight.validate.scoreboard import show

    show(scores(), as_json=as_json)


@click.command("runs", help=RUNS_HELP)
@click.argument("runs", type=click.Path(path_type=Path))
@options.platform()
@options.fields(options.PLATFORM_SET_HELP, name="overrides")
@options.html
@options.json_flag
def _runs(runs: Path, platform: str, overrides: tuple[str, ...], html: Path | None, as_json: bool) -> None:
    from stepsight.prediction.learn.lesson import validate_runs
    from stepsight.report.runs import validation_report

    options.check_outputs([html])
    fix = "a field of a workload is a column of the file"
    found = validate_runs(runs, platform, options.platform_assignments(overrides, str(runs), fix))
    options.deliver_report(found.to_dict, validation_report(found), html, as_json=as_json)
