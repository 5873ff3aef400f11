"""``python -m lab fit anchoring``: how much of what a model misses on one GPU it misses on another."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from lab.datasets.folder import data_folder
from lab.fit.anchoring.operator_steps import operator_steps
from lab.fit.anchoring.weights import fit_weights, pair_samples
from lab.fit.kernels.boards import FILE as TABLE
from stepsight.errors import InputError
from stepsight.prediction.traced.weights import SHIPPED


@click.command("anchoring")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; the package's own by default.")
def command(data: Path | None, out: Path | None) -> None:
    """Exponents of anchoring by class of kernel, from operators that several GPUs ran."""
    from stepsight.documents import to_json

    folder = data_folder(data)
    steps = operator_steps(folder)
    samples = list(pair_samples(steps))
    if not samples:
        raise InputError(str(folder / "kernels" / TABLE), "holds no workload that two GPUs ran")
    workloads, gpus = len({s.name for s in steps}), len({s.gpu for s in steps})
    provenance = f"{TABLE}: {len(samples) // 2} ordered pairs, {workloads} workloads, {gpus} GPUs"
    fitted = fit_weights(samples, provenance)
    path = out or SHIPPED
    path.write_text(to_json(fitted) + "\n")
    click.echo(to_json(msgspec.to_builtins(fitted)))
    click.echo(f"wrote {path}")
