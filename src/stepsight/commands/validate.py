"""``stepsight validate``: predictions against measurements that anybody can check."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError

RUNS = "RUNS.csv -p PLATFORM"
TOPICS = {
    "quick": "Rows that ship with the package: a first check in under a minute.",
    "live": "Random models, predicted, then trained here.",
}
RUNS_HELP = "Your own runs, each predicted without learning and with the others learned from."


class Topics(click.Group):
    """Names of topics; a file of runs is a topic, too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TOPICS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return {"quick": _quick, "live": _live, "RUNS.csv": _runs}.get(cmd_name)

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


@click.command("live")
@options.platform(help="The calibrated platform folder.")
@click.option("--configs", default=40, show_default=True, help="Random DLRMs.")
@click.option("--nlp", default=12, show_default=True, help="Random BERT, GPT-2 and XLNet models.")
@click.option("--stack", type=click.Choice(["eager", "torchrec"]), default="eager", show_default=True,
              help="torchrec: only --configs DLRMs, as TorchRec trains them.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Other workloads.")
@click.option("--steps", default=8, show_default=True, help="Timed steps of each block.")
@click.option("--blocks", default=3, show_default=True, help="Interleaved blocks of each pass.")
@options.path("--out", "Folder that keeps the rows; resumes where it ended.")
@click.option(
    "--budget", default="", help="Stop measuring after this time: 90s, 3m, 1h; run again to continue."
)
@options.network
@options.json_flag
def _live(
    platform: str, configs: int, nlp: int, stack: str, seed: int, steps: int, blocks: int,
    out: Path | None, budget: str, address: str, interface: str, prefix: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Predict random models on a calibrated platform, train them here, and score the predictions."""
    from stepsight.calibrate.journal import Journal
    from stepsight.calibrate.rehearsal import measure_group, pending
    from stepsight.calibrate.session import budget_seconds
    from stepsight.platform.load import load_platform
    from stepsight.run.ranks import Ranks, writable_folder
    from stepsight.validate import live

    on = load_platform(platform)
    device = "cpu" if on.spec.host.synchronous else "cuda"
    deadline = time.monotonic() + (budget_seconds(budget) if budget else 1e9)
    prefixes = options.rank_prefixes(prefix, on.spec.ranks)
    with tempfile.TemporaryDirectory() as scratch:
        journal = Journal(writable_folder(out or Path(scratch)), resume=True)
        documents = live.drawn(on.spec.ranks, configs, nlp, stack, seed)
        live.predict_all(documents, on, journal)
        left = pending(journal, live.MEASURED, documents, live.PASSES)
        for i, (number, members) in enumerate(left):
            if time.monotonic() > deadline:
                click.echo(f"{len(left) - i} of {len(left)} groups are left; run again to continue", err=True)
                break
            click.echo(f"measuring group {i + 1} of {len(left)}, pass {number + 1}", err=True)
            ranks = Ranks(on.spec.ranks, device, address=address, interface=interface, prefixes=prefixes)
            with ranks as group:
                measure_group(group, journal, live.MEASURED, number, members, steps=steps, blocks=blocks)
        rows = live.rows_of(journal)
    if not rows:
        raise InputError("validate live", "nothing was measured in every pass yet", "run again to continue")
    live.report(rows, on.name, as_json=as_json)
