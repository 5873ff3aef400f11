"""``stepsight advise``: changes that make a job faster, or make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands.options import (
    PLATFORM_HELP,
    RECIPE_HELP,
    SET_HELP,
    check_outputs,
    command_line,
    complete_platform,
    platform_assignments,
    print_written,
    split_assignments,
    write_files,
)

if TYPE_CHECKING:
    from stepsight.capture.step.captured import CapturedStep
    from stepsight.platform.load import Platform


@click.command("advise")
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--platform", "-p", "platform", required=True, help=PLATFORM_HELP, shell_complete=complete_platform
)
@click.option("--recipe", metavar="NAME", help=RECIPE_HELP)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@click.option("--all", "all_of_them", is_flag=True, help="List every change that gains, not the first ten.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    workload: Path, platform: str, recipe: str | None, assignments: tuple[str, ...], all_of_them: bool,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Apply every change that WORKLOAD allows, simulate it, and list what gains.

    WORKLOAD is whatever `stepsight predict` takes, or a training script (train.py), which is captured first.
    """
    from stepsight.platform.load import load_platform
    from stepsight.prediction.advise.advice import advise

    check_outputs([html])
    if workload.suffix == ".py":
        on = load_platform(platform, platform_assignments(assignments, "a script", "change the script"))
        found = advise(_captured(workload, on), on)
    else:
        own, on_platform = split_assignments(assignments)
        own = [f"training.recipe={recipe}", *own] if recipe else own
        found = advise(workload, platform, assignments=own, overrides=on_platform)
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json(found.to_dict()))
    else:
        from stepsight.report.console.advice import show
        from stepsight.terminal import terminal

        show(found, terminal(), most=None if all_of_them else 10)
    if html:
        from stepsight.report.page.advice import page

        written = write_files([(html, page(found, command=command_line()))])
        if not as_json:
            print_written(written)


def _captured(script: Path, on: Platform) -> CapturedStep:
    """The script's step on all GPUs of the platform."""
    from stepsight.capture.ranks import Capturing
    from stepsight.capture.request import request
    from stepsight.errors import InputError

    if not script.is_file():
        raise InputError(str(script), "there is no such file", "name the training script")
    asked = request(on.spec, str(script), (), world=on.spec.ranks)
    return Capturing(asked, lambda text: click.echo(f"stepsight: {text}", err=True)).step(script.name, None)
