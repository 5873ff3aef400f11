"""``lab fit traces``: the constants of trace predictions that runs show, with every run's figure."""

from __future__ import annotations

from pathlib import Path

import click

from lab.datasets.folder import data_folder
from lab.fit.traces.fit import fit_constants, with_residuals
from stepsight.trace.fitted import SHIPPED, forget


@click.command("traces")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables, or of traces.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; the package's own by default.")
def command(data: Path | None, out: Path | None) -> None:
    """Spreads of guessed sizes and host times, and how collectives' calls differ, by run and source."""
    from stepsight.documents import to_json, write_whole

    folder = data_folder(data)
    inside = folder / "traces" if (folder / "traces").is_dir() else folder

    def tell(line: str) -> None:
        click.echo(line, err=True)

    fitted = fit_constants(inside, tell)
    path = out or SHIPPED
    write_whole(path, to_json(fitted) + "\n")
    forget()
    if path == SHIPPED:
        fitted = with_residuals(fitted, inside, tell)
        write_whole(path, to_json(fitted) + "\n")
        forget()
    for name, constant in fitted.constants.items():
        value = constant.value()
        shown = "too few sources" if value is None else f"{value:.3f}"
        click.echo(f"{name}: {shown} ({len(constant.runs)} runs of {len(constant.sources)} sources)")
    click.echo(f"wrote {path}")
