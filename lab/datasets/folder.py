"""Where the measured tables lie, and how their rows are read. They are never part of the package."""

from __future__ import annotations

import csv
import importlib.util
import os
from pathlib import Path
from typing import TypeVar

import click

from stepsight.errors import InputError
from stepsight.prediction.kernel_times import Table
from stepsight.prediction.kernel_times import read_table as read_csv_table

ENVIRONMENT = "STEPSIGHT_DATA"
DEFAULT = Path("../shared/data")
T = TypeVar("T")


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of measured tables: as given, else $STEPSIGHT_DATA, else ../shared/data."""
    folder = Path(given or os.environ.get(ENVIRONMENT) or DEFAULT)
    if not folder.is_dir():
        raise InputError(
            str(folder), "no such folder of measured tables", f"pass --data DIR or set {ENVIRONMENT}"
        )
    return folder


def serving_folder() -> Path:
    """Where the aiconfigurator-core package keeps its measured tables."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise InputError(
            "aiconfigurator-core", "the package is not installed", "pip install aiconfigurator-core"
        )
    return Path(next(iter(found.submodule_search_locations))) / "systems" / "data"


def part(data: Path, name: str) -> Path:
    """A part of the folder (e2e, kernels, …); the folder itself where it holds the tables directly."""
    return data / name if (data / name).is_dir() else data


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a measured table; none, with a line about it, where the file is not there."""
    if not path.exists():
        click.echo(f"skipped: {path.name} is not in {path.parent}", err=True)
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "pass --data DIR") from None


def read_table(path: Path) -> Table:
    """The columns of a CSV or parquet file."""
    if path.suffix != ".parquet":
        return read_csv_table(path)
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(str(path), "reading parquet needs pyarrow", "pip install 'stepsight[fit]'") from None
    table = parquet.read_table(path)
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
