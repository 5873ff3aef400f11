"""``python -m lab fit embedding``: the lookup model again, of GPUs from kernels or of a CPU from samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.embedding.gpu import (
    MEMORY,
    WARPS,
    MeasuredKernel,
    fit_coefficients,
    predict_left_out,
    predict_with,
)
from stepsight.kernels.embedding.gpu import SHIPPED


def fitted_record(points: Sequence[MeasuredKernel]) -> dict[str, Any]:
    """The record that ships: fitted coefficients, and how every source fares with and without itself."""
    from stepsight.score import gmae

    coefficients = fit_coefficients(points)
    inside, outside = predict_with(coefficients, points), predict_left_out(points)
    measured = np.array([p.time_us for p in points])
    sources = []
    for source in dict.fromkeys(p.source for p in points):
        mine = [i for i, p in enumerate(points) if p.source == source]
        errors = [round(gmae(times[mine], measured[mine]), 4) for times in (inside, outside)]
        sources.append({"source": source, "rows": len(mine), "gmae": errors[0], "left_out_gmae": errors[1]})
    values = asdict(coefficients)
    return {
        "provenance": "fitted by `python -m lab fit embedding` from published kernels on V100, A100 and H100",
        "coefficients": {name: values[name] for name in (*MEMORY, *WARPS)},
        "sources": sources,
    }


def fit_operator(paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Fit the samples' operator, write its model into a platform's folder, and say what was fitted."""
    from stepsight.calibrate.lookups.fit import fit_samples, table_sets
    from stepsight.calibrate.lookups.microbench import read_samples

    read = [read_samples(path) for path in paths]
    samples = [sample for some, _ in read for sample in some]
    model = fit_samples(samples, read[0][1], table_sets(samples))
    path = model.save(folder)
    return {
        "operator": model.operator,
        "samples": len(samples),
        "phases": {
            name: {"start_us": round(phase.start_us, 2), "spread": round(phase.spread, 4)}
            for name, phase in model.phases.items()
        },
        "written": str(path),
    }


def _show_operator(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json(record))
        return
    click.echo(f"{record['operator']}: {record['samples']} lookups")
    for name, phase in record["phases"].items():
        click.echo(f"{name:24s} ±{phase['spread']:.1%} on table sets left out")
    click.echo(f"written to {record['written']}")


@click.command("embedding")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), default=SHIPPED, help="Where to write them.")
@click.option("--samples", type=click.Path(path_type=Path), multiple=True,
              help="Lookups measured on a CPU by validate embedding: fit those instead.")  # fmt: skip
@click.option("--platform", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="With --samples: the calibrated folder that gets the operator's model.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    data: Path | None, out: Path, samples: tuple[Path, ...], folder: Path | None, as_json: bool
) -> None:
    """Fit the lookup model's coefficients for GPUs and print their error by source.

    With --samples: fit a CPU's lookups with the operator that they were measured with, into a platform.
    """
    from lab.fit.embedding.points import measured_kernels
    from stepsight.documents import to_json, write_whole

    if bool(samples) != (folder is not None):
        raise click.UsageError("--samples and --platform go together")
    if folder is not None:
        _show_operator(fit_operator(samples, folder), as_json)
        return
    record = fitted_record(measured_kernels(data_folder(data)))
    write_whole(out, to_json(record) + "\n")
    if as_json:
        click.echo(to_json(record))
        return
    for name, value in record["coefficients"].items():
        click.echo(f"{name:24s} {value:g}")
    for line in record["sources"]:
        click.echo(
            f"{line['source']:36s} {line['rows']:4d} rows   GMAE {line['gmae']:6.2%}   "
            f"left out {line['left_out_gmae']:6.2%}"
        )
    click.echo(f"written to {out}")
