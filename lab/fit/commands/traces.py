"""``lab fit traces``: the constants of trace predictions that runs show."""

from __future__ import annotations

from pathlib import Path

import click

from lab.datasets.folder import data_folder
from lab.fit.constants import write
from lab.fit.traces.fit import fit_constants
from stepsight.constants import area


@click.command("traces")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables, or of traces.")
@click.option("--dry-run", is_flag=True, help="Print the values and write nothing.")
def command(data: Path | None, dry_run: bool) -> None:
    """Spreads of counted sizes, host times and steps, and how calls of collectives differ."""
    from dataclasses import replace

    folder = data_folder(data)
    inside = folder / "traces" if (folder / "traces").is_dir() else folder
    entries = dict(area("traces").entries)
    for name, (value, runs) in fit_constants(inside, lambda line: click.echo(line, err=True)).items():
        click.echo(f"{name}: {entries[name].value} → {value} ({runs} runs)")
        entries[name] = replace(entries[name], value=value, runs=runs)
    if not dry_run:
        click.echo(f"wrote {write('traces', entries)}")
