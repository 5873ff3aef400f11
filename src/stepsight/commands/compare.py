"""``stepsight compare``: two predictions; ``advise``: changes that gain; ``diagnose``: why a step is slow."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.prediction.compare import Comparison, compare

HELP = """Predict A and B and show where the difference went.

A and B are workloads (whatever `stepsight predict` takes), the same workload with different options, or a
trace or a captured step and a what-if:

\b
  stepsight compare dlrm.toml -p 4xV100-SXM2 --platform-b 8xA100-SXM4-40G
  stepsight compare gpt2.toml -p 8xH100-SXM --set-b batch_per_rank=16
  stepsight compare --model llama3-8b -p 8xH100-SXM --set parallel.zero=3 --set-b training.precision=fp8
  stepsight compare step.json -p 8xH100-SXM --what-if no-host
  stepsight compare --trace DIR --what-if no-host --what-if link=100

"""
TRACE_FIX = "ask a --what-if"


class Compare(click.Command):
    """Lists the what-if questions in its help; their module is loaded only then."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from stepsight.prediction.traced.whatif import QUESTIONS

        super().format_help_text(ctx, formatter)
        described = [text.partition(": ") for text, _ in QUESTIONS.values()]
        with formatter.section("What-if questions on a trace or a captured step"):
            formatter.write_dl([(written, meaning) for written, _, meaning in described])


@click.command("compare", cls=Compare, help=HELP)
@click.argument("a", required=False, type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option("--model", "model", help=options.MODEL_HELP)
@options.platform(required=False, help="Platform of A, and of B unless given.")
@click.option("--platform-b", help="Platform of B.", shell_complete=options.complete_platform)
@options.fields(f"{options.SET_HELP} On both sides.", name="both")
@click.option("--set-b", "only_b", multiple=True, metavar="KEY=VALUE", help="The same, for B only.")
@options.path("--trace", "A is the step in these traces.", multiple=True)
@click.option("--what-if", "questions", multiple=True, metavar="QUESTION", help="B is A with this changed.")
@click.option("--models-only", is_flag=True, help=options.MODELS_ONLY_HELP)
@options.path("--timeline", "Write B's Perfetto timeline here.")
@options.path("--html", "Write a page that shows where the difference went.")
@options.json_flag
def command(
    a: Path | None, b: Path | None, model: str | None, platform: str | None, platform_b: str | None,
    both: tuple[str, ...], only_b: tuple[str, ...], trace: tuple[Path, ...], questions: tuple[str, ...],
    models_only: bool, timeline: Path | None, html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    if bool(a) + bool(model) + bool(trace) != 1:
        raise click.UsageError("give exactly one of A (and B), --model and --trace")
    if models_only and not trace:
        raise click.UsageError("--models-only needs --trace")
    if (trace or questions) and (b or platform_b or only_b):
        raise click.UsageError("--what-if makes B of A; leave out B, --platform-b and --set-b")
    options.check_outputs((timeline, html))
    a = a or Path(model or "")
    if trace:
        comparison = _of_trace(trace, platform, both, questions, models_only=models_only)
    elif questions:
        comparison = _of_captured(a, platform, both, questions)
    else:
        comparison = _of_files(a, b, platform, platform_b, both, only_b)
    from stepsight.report.perfetto import chrome_trace
    from stepsight.report.runs import comparison_page, show_comparison

    options.deliver(
        comparison.to_dict, lambda console: show_comparison(comparison, console),
        (timeline, lambda: chrome_trace(comparison.after)),
        (html, lambda: comparison_page(comparison)), as_json=as_json,
    )  # fmt: skip


def _of_files(
    a: Path, b: Path | None, platform: str | None, platform_b: str | None, both: tuple[str, ...],
    only_b: tuple[str, ...],
) -> Comparison:  # fmt: skip
    from stepsight.commands.predict import predict_file

    if (b or a) == a and (platform_b or platform) == platform and not only_b:
        raise click.UsageError("A and B are the same; give a second file, --platform-b or --set-b")
    before = predict_file(a, platform, both)
    return compare(before, predict_file(b or a, platform_b or platform, (*both, *only_b)))


def _of_captured(
    a: Path, platform: str | None, both: tuple[str, ...], questions: tuple[str, ...]
) -> Comparison:
    from stepsight.capturing.step import is_step_file, load_step
    from stepsight.platform.load import load_platform
    from stepsight.prediction.predict import CapturedOn
    from stepsight.prediction.traced.whatif import compared

    if not is_step_file(a):
        raise click.UsageError("--what-if asks about a trace (--trace) or a captured step (step.json)")
    if not platform:
        raise click.UsageError("--platform is missing; `stepsight platforms` lists what there is")
    on = load_platform(platform, options.captured_assignments(both))
    return compared(CapturedOn.of(load_step(a), on), questions)


def _of_trace(
    trace: tuple[Path, ...], platform: str | None, both: tuple[str, ...], questions: tuple[str, ...], *,
    models_only: bool,
) -> Comparison:  # fmt: skip
    from stepsight.prediction.traced.predict import traced_step
    from stepsight.prediction.traced.whatif import compared

    if not questions:
        raise click.UsageError("--trace needs at least one --what-if")
    changes = options.platform_assignments(both, "a trace", TRACE_FIX)
    return compared(traced_step(trace, platform, overrides=changes, models_only=models_only), questions)


@click.command("advise")
@click.argument("workload", type=click.Path(path_type=Path))
@options.platform()
@options.recipe
@options.fields()
@click.option("--all", "all_of_them", is_flag=True, help="List every change that gains, not the first ten.")
@options.html
@options.json_flag
def advise(
    workload: Path, platform: str, recipe: str | None, assignments: tuple[str, ...], all_of_them: bool,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Apply every change that WORKLOAD allows, simulate it, and list what gains.

    WORKLOAD is whatever `stepsight predict` takes, or a training script (train.py), which is captured first.
    """
    from stepsight.platform.load import load_platform
    from stepsight.prediction import advice
    from stepsight.report.runs import advice_report

    options.check_outputs([html])
    if workload.suffix == ".py":
        on = load_platform(
            platform, options.platform_assignments(assignments, "a script", "change the script")
        )
        from stepsight.capturing.api import capture

        step = capture(workload, on, progress=lambda text: click.echo(f"stepsight: {text}", err=True))
        found = advice.advise(step, on)
    else:
        own, on_platform = options.split_assignments(assignments, recipe)
        found = advice.advise(workload, platform, assignments=own, overrides=on_platform)
    report = advice_report(found, most=None if all_of_them else 10)
    options.deliver_report(found.to_dict, report, html, as_json=as_json)


MEASURED_HELP = (
    "What was measured: 812ms, 41.2k tokens/s, 5100 tokens/s/gpu, 3100 samples/s, 210 TFLOP/s, 38% MFU."
)
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
