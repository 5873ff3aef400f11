"""``stepsight compare``: two predictions, and where the difference went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stepsight.commands import options
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
    from stepsight.report.comparison import comparison_page, show_comparison
    from stepsight.report.perfetto import chrome_trace

    options.deliver(
        lambda: _document(comparison), lambda console: show_comparison(comparison, console),
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
    from stepsight.prediction.traced.whatif import changed, work_ratio

    if not is_step_file(a):
        raise click.UsageError("--what-if asks about a trace (--trace) or a captured step (step.json)")
    if not platform:
        raise click.UsageError("--platform is missing; `stepsight platforms` lists what there is")
    overrides = options.captured_assignments(both)
    step = CapturedOn.of(load_step(a), load_platform(platform, overrides))
    after = changed(step, questions)
    ratio = work_ratio(step, after, questions)
    after = after.of_work(ratio, ratio * step.job.job.ranks / after.job.job.ranks)
    return compare(step.predicted(), after.predicted(), work_ratio=ratio)


def _of_trace(
    trace: tuple[Path, ...], platform: str | None, both: tuple[str, ...], questions: tuple[str, ...], *,
    models_only: bool,
) -> Comparison:  # fmt: skip
    from stepsight.prediction.traced.predict import predict_step, traced_step
    from stepsight.prediction.traced.whatif import changed, work_ratio

    if not questions:
        raise click.UsageError("--trace needs at least one --what-if")
    changes = options.platform_assignments(both, "a trace", TRACE_FIX)
    step = traced_step(trace, platform, overrides=changes, models_only=models_only)
    after = changed(step, questions)
    ratio = work_ratio(step, after, questions)
    return compare(predict_step(step), predict_step(after), work_ratio=ratio)


def _document(comparison: Comparison) -> dict[str, Any]:
    import msgspec

    from stepsight.prediction.answer import document

    return {
        "before": document(comparison.before),
        "after": document(comparison.after),
        "difference_us": comparison.difference_us,
        "speedup": comparison.speedup,
        "work_ratio": comparison.work_ratio,
        "throughput_ratio": comparison.throughput_ratio,
        "changes": [{**msgspec.to_builtins(c), "difference_us": c.difference_us} for c in comparison.changes],
    }
