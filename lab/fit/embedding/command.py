"""``python -m lab fit embedding``: the lookup model of GPUs from measured kernels."""

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
from lab.fit.embedding.points import measured_kernels
from stepsight.documents import to_json, write_whole
from stepsight.kernels.embedding.gpu import SHIPPED
from stepsight.score import gmae


def fitted_record(points: Sequence[MeasuredKernel]) -> dict[str, Any]:
    """The record that ships: fitted coefficients, and how every source fares with and without itself."""
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


@click.command("embedding")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), default=SHIPPED, help="Where to write them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, out: Path, as_json: bool) -> None:
    """Fit the lookup model's coefficients for GPUs and print their error by source."""
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
