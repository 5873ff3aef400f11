"""``stepsight advise``: changes that make a job faster, or make it fit; ``diagnose``: why a step is slow."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError


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
    from stepsight.prediction.advice import advise
    from stepsight.report.runs import advice_report

    options.check_outputs([html])
    if workload.suffix == ".py":
        on = load_platform(
            platform, options.platform_assignments(assignments, "a script", "change the script")
        )
        from stepsight.capturing.api import capture

        step = capture(workload, on, progress=lambda text: click.echo(f"stepsight: {text}", err=True))
        found = advise(step, on)
    else:
        own, on_platform = options.split_assignments(assignments, recipe)
        found = advise(workload, platform, assignments=own, overrides=on_platform)
    report = advice_report(found, most=None if all_of_them else 10)
    options.deliver_report(found.to_dict, report, html, as_json=as_json)


MEASURED_HELP = "What was measured: 812ms, 41.2k tokens/s, 3100 samples/s, 210 TFLOP/s, 38% MFU."
ALSO_HELP = "Another measurement of the job: KEY=VALUE[,KEY=VALUE]:MEASURED, such as parallel.ranks=8:410ms."


@click.command("diagnose")
@click.argument("workload", type=click.Path(path_type=Path))
@options.platform()
@options.recipe
@options.fields()
@click.option("--measured", help=MEASURED_HELP)
@click.option("--log", "log", metavar="LINE", help="A line of the training log that states a time or a rate.")
@click.option("--data-time", "data", help="Time per step that the loop waits for data, such as 40ms.")
@click.option(
    "--memory-gb", type=click.FloatRange(min=0, min_open=True), help="Measured peak memory of a GPU in GB."
)
@click.option("--also", multiple=True, metavar="KEY=VALUE:MEASURED", help=ALSO_HELP)
@options.path("--trace", "Traces of the slow run.", multiple=True)
@options.html
@options.json_flag
def diagnose(
    workload: Path, platform: str, recipe: str | None, assignments: tuple[str, ...], measured: str | None,
    log: str | None, data: str | None, memory_gb: float | None, also: tuple[str, ...],
    trace: tuple[Path, ...], html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare a measured step of WORKLOAD with its prediction and name what may be wrong."""
    from stepsight.prediction import diagnosis
    from stepsight.report.runs import diagnosis_report

    if bool(measured) == bool(log):
        raise click.UsageError("give exactly one of --measured and --log")
    options.check_outputs([html])
    own, on_platform = options.split_assignments(assignments, recipe)
    found = diagnosis.diagnose(
        workload, platform, measured, log=log, data=data, memory_gb=memory_gb,
        also=[_also(text) for text in also], trace=trace, assignments=own, overrides=on_platform,
    )  # fmt: skip
    options.deliver_report(found.to_dict, diagnosis_report(found), html, as_json=as_json)


def _also(text: str) -> tuple[list[str], str]:
    settings, colon, measured = text.rpartition(":")
    if not colon or "=" not in settings:
        raise InputError(f"--also {text}", "is not KEY=VALUE:MEASURED", "for example parallel.ranks=8:410ms")
    return settings.split(","), measured
