"""``stepsight fit overheads``: remake the shipped host overheads from the measured data."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("overheads")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables and traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to (default: the shipped one).")
def command(data: Path | None, out: Path | None) -> None:
    """Host overheads T1–T5 per host era, from the published studies and the traces."""
    from stepsight.measured_data import data_folder
    from stepsight.overheads.shipped import shipped_sets

    folder = out or Path(__file__).parent / "defaults"
    folder.mkdir(parents=True, exist_ok=True)
    for era, table in sorted(shipped_sets(data_folder(data)).items()):
        table.save(folder / f"{era}.json")
        click.echo(f"{era}: {len(table.ops)} operators, {len(table.launches)} launch calls")
