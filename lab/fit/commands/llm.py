"""``python -m lab fit llm``: constants of language-model steps, of all rows and without each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

import lab.score.llm as package
from lab.datasets.folder import data_folder
from lab.score.llm.left_out import FILE, Constants, row_id
from lab.score.llm.refit import Fit, Surface, reaches, surface
from lab.score.llm.rows import Case
from lab.score.llm.topic import FILES, cases
from stepsight.estimate import FloatArray

DIGITS = 4


@click.command("llm")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to; the package's by default.")
def command(data: Path | None, out: Path | None) -> None:
    """Host work of frameworks, sustained clocks and sites' networks, with every group left out in turn."""
    from stepsight.documents import to_json

    timed = _timed(data_folder(data))
    rows = _surfaces(timed)
    fit = Fit(rows)
    every = fit.at(np.ones(len(rows), dtype=bool))
    groups = list(dict.fromkeys(r.group for r in rows))
    without = fit.without(fit.groups, groups)
    constants = fit.constants(every)
    document = {
        "provenance": "lab fit llm; constants of all rows, and where they differ without each group",
        "all": _plain(constants),
        "without": {g: _differing(constants, fit.constants(less)) for g, less in without.items()},
        "rows": sorted({row_id(case.file, case.name) for cases, _ in timed for case in cases}),
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


def _timed(data: Path) -> list[tuple[list[Case], int]]:
    """Every file's rows with a time, and of how many the fit takes one."""
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    there = [file for file in FILES if (folder / file.name).is_file()]
    return [([c for c in cases(file, folder) if c.measured_ms is not None], file.every) for file in there]


def _surfaces(timed: list[tuple[list[Case], int]]) -> list[Surface]:
    found = []
    for kept, every in timed:
        found += [s for s in map(surface, kept[::every]) if s is not None]
        click.echo(f"{len(found)} rows priced", err=True)
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
