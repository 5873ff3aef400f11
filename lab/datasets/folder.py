"""Where the measured tables lie, for fitting and scoring. They are never part of the package."""

from __future__ import annotations

import os
from pathlib import Path

from stepsight.errors import InputError

ENVIRONMENT = "STEPSIGHT_DATA"
DEFAULT = Path("../shared/data")


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of measured tables: as given, else $STEPSIGHT_DATA, else ../shared/data."""
    folder = Path(given or os.environ.get(ENVIRONMENT) or DEFAULT)
    if not folder.is_dir():
        raise InputError(
            str(folder), "no such folder of measured tables", f"pass --data DIR or set {ENVIRONMENT}"
        )
    return folder
