"""``stepsight sweep``: predictions over any field of the workload or the platform, as a table."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands.options import (
    PLATFORM_HELP,
    check_outputs,
    command_line,
    complete_platform,
    model_argument,
    print_written,
    progress_bar,
    split_assignments,
    with_model,
    with_search_options,
)
from stepsight.errors import StepsightError

EXPLORE_HELP = "Write a page with a slider for each field, answered from these rows."
OVER_HELP = "A field and its values: batch=1024,2048, platform=A,B, platform.link.gbps=100,200."


@click.command("sweep")
@with_model
@click.option("--platform", "-p", help=PLATFORM_HELP, shell_complete=complete_platform)
@click.option("--over", multiple=True, required=True, metavar="FIELD=A,B,…", help=OVER_HELP)
@click.option("--csv", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--explore", type=click.Path(path_type=Path), help=EXPLORE_HELP)
@with_search_options
def command(
    model: Path | None, named: str | None, platform: str | None, over: tuple[str, ...], csv: Path | None,
    explore: Path | None, assignments: tuple[str, ...], price: float | None, workers: int,
    ray: str | None, resume: Path | None, as_json: bool, html: Path | None,
) -> None:  # fmt: skip
    """Predict MODEL for every combination of the values given."""
    from stepsight.documents import to_json, write_whole
    from stepsight.report.tune.console import row_document, rows_csv
    from stepsight.tune.api import sweep

    model = model_argument(model, named)
    check_outputs((html, csv, explore, resume))
    on_workload, on_platform = split_assignments(assignments)
    with progress_bar("sweep", quiet=as_json) as progress:
        rows = sweep(
            model, platform, over=over, price_per_gpu_hour=price, assignments=on_workload,
            overrides=on_platform, workers=workers, ray=ray, resume=resume, progress=progress,
        )  # fmt: skip
    if not any(row.priced for row in rows):
        raise StepsightError(f"--over: every combination is refused; the first: {rows[0].reason}")
    if csv:
        write_whole(csv, rows_csv(rows))
    if html:
        from stepsight.report.tune.page import sweep_page

        write_whole(html, sweep_page(rows, str(model), command=command_line()))
    if explore:
        from stepsight.report.tune.explore import sweep_explore

        write_whole(explore, sweep_explore(rows, over, str(model), command=command_line()))
    if as_json:
        click.echo(to_json([row_document(row) for row in rows]))
        return
    from stepsight.report.tune.console import show_rows
    from stepsight.terminal import terminal

    show_rows(rows, terminal())
    print_written(path for path in (csv, html, explore) if path)
