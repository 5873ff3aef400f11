"""``stepsight fit llm``: constants of language-model steps, of all rows and without each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

import stepsight.validate.llm as package
from stepsight.estimate import FloatArray
from stepsight.measured_data import data_folder
from stepsight.validate.llm.left_out import FILE, Constants
from stepsight.validate.llm.refit import Fit, Surface, reaches, surface
from stepsight.validate.llm.topic import FILES, cases

DIGITS = 4


@click.command("llm")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to; the package's by default.")
def command(data: Path | None, out: Path | None) -> None:
    """Host work of frameworks, sustained clocks and sites' networks, with every group left out in turn."""
    from stepsight.documents import to_json

    rows = _surfaces(data_folder(data))
    fit = Fit(rows)
    every = fit.at(np.ones(len(rows), dtype=bool))
    groups = list(dict.fromkeys(r.group for r in rows))
    without = fit.without(fit.groups, groups)
    constants = fit.constants(every)
    document = {
        "provenance": "stepsight fit llm; constants of all rows, and where they differ without each group",
        "all": _plain(constants),
        "without": {g: _differing(constants, fit.constants(less)) for g, less in without.items()},
        "rows": sorted({r.row for r in rows}),
    }
    path = (out or Path(package.__file__).parent) / FILE
    path.write_text(to_json(document) + "\n")
    for kind, values in _plain(constants).items():
        for name, value in values.items():
            click.echo(f"{kind:10s} {name:40s} {value:g}")
    for gpu, value in fit.by_gpu().items():
        click.echo(f"{'clock':10s} {gpu:40s} {value:g} over all sources")
    known = _left_out(fit, without, fit.groups)
    for kind, reach in reaches(rows, known).items():
        click.echo(f"{'reach':10s} {kind:40s} {reach:.2f}")
    sources = fit.without(fit.sources, list(dict.fromkeys(r.source for r in rows)))
    foreign = _left_out(fit, sources, fit.sources)
    nodes = [replace(r, kind="many nodes" if r.kind.endswith(" nodes") else "one node") for r in rows]
    for kind, reach in reaches(nodes, foreign).items():
        click.echo(f"{'reach':10s} {'unknown framework, ' + kind:40s} {reach:.2f}")
    click.echo(f"{len(rows)} rows in {len(groups)} groups; wrote {path}")


def _left_out(fit: Fit, without: Mapping[str, list[FloatArray]], labels: FloatArray) -> FloatArray:
    """Every row's residual by the fit without its group or source."""
    found = np.empty(len(labels))
    for name, less in without.items():
        mine = labels == name
        found[mine] = fit.residuals(less)[mine]
    return found


def _surfaces(data: Path) -> list[Surface]:
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    found = []
    for file in FILES:
        if (folder / file.name).is_file():
            kept = [case for case in cases(file, folder) if case.measured_ms is not None]
            found += [s for s in map(surface, kept[:: file.every]) if s is not None]
            click.echo(f"{file.name}: {len(found)} rows so far", err=True)
    return found


def _plain(constants: Constants) -> dict[str, dict[str, float]]:
    parts = {"host_us": constants.host_us, "clock": constants.clock, "network": constants.network}
    return {
        kind: {name: round(value, DIGITS) for name, value in values.items()} for kind, values in parts.items()
    }


def _differing(every: Constants, less: Constants) -> Mapping[str, Mapping[str, float]]:
    whole, rest = _plain(every), _plain(less)
    return {
        kind: changed
        for kind, values in rest.items()
        if (changed := {n: v for n, v in values.items() if whole[kind].get(n) != v})
    }
