"""``lab fit overheads``: gather the shipped host overheads from the published studies and traces."""

from __future__ import annotations

from pathlib import Path

import click

import stepsight.overheads as overheads_package
from lab.datasets.folder import data_folder
from lab.fit.overheads.recommendation import recommendation_sets
from lab.fit.overheads.shipped import BASE_ERA, shipped_sets


@click.command("overheads")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables and traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; the package's own by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, out: Path | None, as_json: bool) -> None:
    """Host overheads T1–T5 by operator and host era."""
    from stepsight.documents import to_json

    folder = out or Path(overheads_package.__file__).parent / "defaults"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    measured = data_folder(data)
    sets = shipped_sets(measured)
    sets |= recommendation_sets(measured / "overheads", sets[BASE_ERA])
    for era, overheads in sets.items():
        overheads.save(folder / f"{era}.json")
        written.append({"era": era, "operators": len(overheads.ops), "provenance": overheads.provenance})
        click.echo(f"{era}: {len(overheads.ops)} operators; {overheads.provenance}", err=as_json)
    if as_json:
        click.echo(to_json(written))
