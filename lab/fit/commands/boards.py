"""``python -m lab fit boards``: how fast the boards of the single-GPU DLRM study ran their kernels."""

from __future__ import annotations

import csv
from pathlib import Path

import click

import lab.fit as fitting_package
from lab.datasets.folder import data_folder
from lab.fit.dlrm_study import (
    FILE,
    GPUS,
    ActiveRow,
    active_ms,
    batch_speeds,
    board_speeds,
    speeds_without,
    workload_document,
)
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import parse_workload


@click.command("boards")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; the package's own by default.")
def command(data: Path | None, out: Path | None) -> None:
    """Speeds of the study's boards, for each model from the other models' active times."""
    from stepsight.documents import to_json, write_whole

    rows = []
    with (data_folder(data) / "e2e" / "dlrm_single_gpu.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            measured = active_ms(row)
            if measured is not None:
                workload = parse_workload(workload_document(row["model"], int(row["batch"])), row["model"])
                prediction = predict(workload, load_platform(f"1x{GPUS[row['gpu']]}"))
                active = prediction.gpu_active_us / 1e3
                rows.append(ActiveRow(row["gpu"], row["model"], measured, active, int(row["batch"])))
    document = {
        "provenance": "measured active times of a published study (2022) against the shipped kernel models; "
        f"{len(rows)} rows; the rows that a speed serves are left out of it",
        "unit": "share of the speed that the kernel models expect",
        "speeds": board_speeds(rows),
        "without_board": speeds_without(rows, lambda row: row.gpu),
        "without_batch": batch_speeds(rows),
    }
    path = (out or Path(fitting_package.__file__).parent) / FILE
    write_whole(path, to_json(document) + "\n")
    click.echo(f"wrote {path}")
