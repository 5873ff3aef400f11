"""``stepsight tune``: the best configuration of a model on a platform, with reasons; ``sweep``: a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError, StepsightError

OVER_HELP = "Dimensions to vary (tp,pp,zero,micro_batch,recompute,vp,cp,ep,precision,…), or values: zero=0,1."
DEADLINE_HELP = (
    "Only configurations that train --tokens in this many days; with --objective cost or energy, the least."
)
FIT_HELP = "Leave out what fits with a lower probability; 0.5 lists all that probably fit."


@click.command("tune")
@options.model
@options.platform()
@click.option("--gpus", default="", metavar="N,N,…", help="Numbers of GPUs to try; all by default.")
@click.option("--global-batch", type=click.IntRange(1), help="Sequences per step; the model's by default.")
@click.option("--over", multiple=True, metavar="DIMENSIONS", help=OVER_HELP)
@click.option(
    "--objective", type=click.Choice(["time", "cost", "energy", "memory"]), default="time", show_default=True
)  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="How many to show.")
@click.option("--deadline-days", type=click.FloatRange(0, min_open=True), help=DEADLINE_HELP)
@click.option("--tokens", type=options.count, help="Tokens of the whole run: 15e12, 15T, 300B.")
@click.option("--min-fit", type=click.FloatRange(0.05, 0.99), default=0.9, show_default=True, help=FIT_HELP)
@options.path("--csv", "Write all rows here.")
@options.search
def command(
    model: Path | None, named: str | None, platform: str, gpus: str, global_batch: int | None,
    over: tuple[str, ...], objective: str, top: int,
    deadline_days: float | None, tokens: float | None, min_fit: float, csv: Path | None,
    assignments: tuple[str, ...], price: float | None, workers: int,
    ray: str | None, resume: Path | None, as_json: bool, html: Path | None,
) -> None:  # fmt: skip
    """Find the fastest (or cheapest, or smallest) configuration of MODEL that fits, with reasons."""
    from stepsight.report.search import answer_document, rows_csv, show_answer, tune_page
    from stepsight.tuning.api import tune
    from stepsight.tuning.evaluate import platform_of
    from stepsight.tuning.flags import flags
    from stepsight.tuning.search import ranked

    if deadline_days is not None and tokens is None:
        raise click.UsageError("--deadline-days needs --tokens")
    least = tokens / deadline_days / 86400 if tokens and deadline_days else None
    model = options.model_argument(model, named)
    options.check_outputs((html, csv, resume))
    try:
        counts = [int(n) for n in gpus.split(",") if n.strip()]
    except ValueError:
        raise InputError("--gpus", f"is {gpus!r}", "write numbers, 8,16,32") from None
    on_workload, on_platform = options.split_assignments(assignments)
    with options.progress_bar("tune", quiet=as_json) as progress:
        answer = tune(
            model, platform, gpus=counts, global_batch=global_batch, over=over, objective=objective, top=top,
            price_per_gpu_hour=price, assignments=on_workload, overrides=on_platform, workers=workers,
            ray=ray, resume=resume,
            least_tokens_per_s=least, min_fit=min_fit, progress=progress,
        )  # fmt: skip
    answer = replace(answer, tokens=tokens)
    best_first = ranked(answer.rows, answer.objective, min_fit)
    loaded = platform_of(answer.best.platform, tuple(on_platform))
    written = flags(answer.document, answer.best, loaded, str(model), best_first)
    options.deliver(
        lambda: answer_document(answer, written), lambda console: show_answer(answer, console, written),
        (csv, lambda: rows_csv(answer.rows)),
        (html, lambda: tune_page(answer, written)), as_json=as_json,
    )  # fmt: skip


SWEEP_HELP = "A field and its values: batch=1024,2048, platform=A,B, platform.link.gbps=100,200."


@click.command("sweep")
@options.model
@options.platform(required=False)
@click.option("--over", multiple=True, required=True, metavar="FIELD=A,B,…", help=SWEEP_HELP)
@options.path("--csv", "Write the rows here.")
@options.search
def sweep(
    model: Path | None, named: str | None, platform: str | None, over: tuple[str, ...], csv: Path | None,
    assignments: tuple[str, ...], price: float | None, workers: int,
    ray: str | None, resume: Path | None, as_json: bool, html: Path | None,
) -> None:  # fmt: skip
    """Predict MODEL for every combination of the values given."""
    from stepsight.report.search import row_document, rows_csv, show_rows, sweep_page
    from stepsight.tuning import api

    model = options.model_argument(model, named)
    options.check_outputs((html, csv, resume))
    on_workload, on_platform = options.split_assignments(assignments)
    with options.progress_bar("sweep", quiet=as_json) as progress:
        rows = api.sweep(
            model, platform, over=over, price_per_gpu_hour=price, assignments=on_workload,
            overrides=on_platform, workers=workers, ray=ray, resume=resume, progress=progress,
        )  # fmt: skip
    if not any(row.priced for row in rows):
        raise StepsightError(f"--over: every combination is refused; the first: {rows[0].reason}")
    options.deliver(
        lambda: [row_document(row) for row in rows], lambda console: show_rows(rows, console),
        (csv, lambda: rows_csv(rows)), (html, lambda: sweep_page(rows, str(model))), as_json=as_json,
    )  # fmt: skip
