"""Write constants where the package reads them: ``src/stepsight/data/constants/AREA.toml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import stepsight
from stepsight.constants import Constant, area

FOLDER = Path(stepsight.__file__).parent / "data" / "constants"


def store(name: str, values: Mapping[str, Any], *, runs: int | None = None) -> Path:
    """Give constants of an area their fitted values; all else of the file stays."""
    entries = dict(area(name).entries)
    for constant, value in values.items():
        known = entries[constant]
        entries[constant] = replace(known, value=value, runs=known.runs if runs is None else runs)
    return write(name, entries)


def write(name: str, entries: Mapping[str, Constant]) -> Path:
    """The file of an area, one table per constant."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.toml"
    path.write_text("\n".join(_table(key, constant) for key, constant in entries.items()), encoding="utf-8")
    area.cache_clear()
    return path


def _table(name: str, constant: Constant) -> str:
    lines = [f"[{name}]", f"value = {_value(constant.value)}"]
    lines += [f"{key} = {_value(getattr(constant, key))}" for key in ("unit", "basis", "affects")]
    if constant.runs is not None:
        lines.append(f"runs = {constant.runs}")
    if constant.applies_to != "all":
        lines.append(f"applies_to = {_value(constant.applies_to)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return repr(value).lower() if isinstance(value, bool) else repr(value)
