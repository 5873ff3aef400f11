"""``stepsight advise``: changes that make a job faster, or make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands import options

if TYPE_CHECKING:
    from stepsight.capture.step.captured import CapturedStep
    from stepsight.platform.load import Platform


@click.command("advise")
@click.argument("workload", type=click.Path(path_type=Path))
@options.platform()
@options.recipe
@options.fields()
@click.option("--all", "all_of_them", is_flag=True, help="List every change that gains, not the first ten.")
@options.html
@options.json_flag
def command(
    workload: Path, platform: str, recipe: str | None, assignments: tuple[str, ...], all_of_them: bool,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Apply every change that WORKLOAD allows, simulate it, and list what gains.

    WORKLOAD is whatever `stepsight predict` takes, or a training script (train.py), which is captured first.
    """
    from stepsight.platform.load import load_platform
    from stepsight.prediction.advise.advice import advise
    from stepsight.report.runs import advice_report

    options.check_outputs([html])
    if workload.suffix == ".py":
        on = load_platform(
            platform, options.platform_assignments(assignments, "a script", "change the script")
        )
        found = advise(_captured(workload, on), on)
    else:
        own, on_platform = options.split_assignments(assignments, recipe)
        found = advise(workload, platform, assignments=own, overrides=on_platform)
    report = advice_report(found, most=None if all_of_them else 10)
    options.deliver_report(found.to_dict, report, html, as_json=as_json)


def _captured(script: Path, on: Platform) -> CapturedStep:
    """The script's step on all GPUs of the platform."""
    from stepsight.capture.ranks import Capturing
    from stepsight.capture.request import request
    from stepsight.errors import InputError

    if not script.is_file():
        raise InputError(str(script), "there is no such file", "name the training script")
    asked = request(on.spec, str(script), (), world=on.spec.ranks)
    return Capturing(asked, lambda text: click.echo(f"stepsight: {text}", err=True)).step(script.name, None)
