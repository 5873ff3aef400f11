"""``stepsight sweep``: predictions over any field of the workload or the platform, as a table."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import StepsightError

OVER_HELP = "A field and its values: batch=1024,2048, platform=A,B, platform.link.gbps=100,200."


@click.command("sweep")
@options.model
@options.platform(required=False)
@click.option("--over", multiple=True, required=True, metavar="FIELD=A,B,…", help=OVER_HELP)
@options.path("--csv", "Write the rows here.")
@options.search
def command(
    model: Path | None, named: str | None, platform: str | None, over: tuple[str, ...], csv: Path | None,
    assignments: tuple[str, ...], price: float | None, workers: int,
    ray: str | None, resume: Path | None, as_json: bool, html: Path | None,
) -> None:  # fmt: skip
    """Predict MODEL for every combination of the values given."""
    from stepsight.report.search import row_document, rows_csv, show_rows, sweep_page
    from stepsight.tune.api import sweep

    model = options.model_argument(model, named)
    options.check_outputs((html, csv, resume))
    on_workload, on_platform = options.split_assignments(assignments)
    with options.progress_bar("sweep", quiet=as_json) as progress:
        rows = sweep(
            model, platform, over=over, price_per_gpu_hour=price, assignments=on_workload,
            overrides=on_platform, workers=workers, ray=ray, resume=resume, progress=progress,
        )  # fmt: skip
    if not any(row.priced for row in rows):
        raise StepsightError(f"--over: every combination is refused; the first: {rows[0].reason}")
    options.deliver(
        lambda: [row_document(row) for row in rows], lambda console: show_rows(rows, console),
        (csv, lambda: rows_csv(rows)), (html, lambda: sweep_page(rows, str(model))), as_json=as_json,
    )  # fmt: skip
