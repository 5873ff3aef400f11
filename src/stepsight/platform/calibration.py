"""What a calibrated folder says about its own measurements (``calibration.json``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from stepsight.errors import InputError
from stepsight.inputs import read_text

FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """``rehearsal_spread``: standard deviation of ln(predicted / measured) over the steps that were trained
    at the end of the calibration; ``pace_us``: what the machine's probe took beside them."""

    rehearsal_spread: float = 0.0
    pace_us: float | None = None

    @classmethod
    def read(cls, folder: Path) -> Calibration:
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            content = json.loads(read_text(path, "calibrate again"))
            errors = [float(e) for e in content.get("rehearsal_error", {}).values()]
            pace = content.get("pace_us")
            spread = (sum(e * e for e in errors) / len(errors)) ** 0.5 if errors else 0.0
            return cls(spread, float(pace) if pace else None)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                str(path), f"is not a calibration's account ({error})", "calibrate again"
            ) from None
