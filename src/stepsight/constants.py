"""Constants that were chosen or read off runs: data files with value, unit, basis and what they apply to.

``data/constants/AREA.toml`` has one table per constant. ``lab fit`` writes values there; nobody retypes them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FEWEST_RUNS = 3
"""Independent runs below which a constant that physics does not state is poorly founded."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant.

    ``affects``: the figure that it moves. ``runs`` counts the independent runs (machines, tables or
    collections of traces) that it was read off; none where it was chosen, or where hardware, a format or a
    library's code states it. ``applies_to``: the GPUs, frameworks or versions that it holds for.
    """

    value: Any
    unit: str
    basis: str
    affects: str
    runs: int | None = None
    applies_to: str = "all"

    @property
    def few_runs(self) -> bool:
        """Whether it was read off fewer than three independent runs."""
        return self.runs is not None and self.runs < FEWEST_RUNS


@dataclass(frozen=True)
class Area:
    """The constants of one area, read with the type that its code expects; plain numbers are attributes."""

    name: str
    entries: Mapping[str, Constant]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_") or name not in self.entries:
            raise AttributeError(f"no constant {name} in data/constants/{self.name}.toml")
        number = self.__dict__[name] = self.number(name)
        return number

    def number(self, name: str) -> float:
        return msgspec.convert(self.entries[name].value, float)

    def whole(self, name: str) -> int:
        return msgspec.convert(self.entries[name].value, int)

    def numbers(self, name: str) -> tuple[float, ...]:
        return msgspec.convert(self.entries[name].value, tuple[float, ...])

    def curve(self, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Places and the values there, for linear interpolation."""
        return msgspec.convert(self.entries[name].value, tuple[tuple[float, ...], tuple[float, ...]])

    def texts(self, name: str) -> dict[str, str]:
        return msgspec.convert(self.entries[name].value, dict[str, str])

    def by_name(self, name: str) -> dict[str, float]:
        return msgspec.convert(self.entries[name].value, dict[str, float])


@cache
def area(name: str) -> Area:
    """The constants of an area, from its file."""
    return Area(name, msgspec.convert(table(f"constants/{name}"), dict[str, Constant]))


def table(name: str) -> dict[str, Any]:
    """The tables of ``data/NAME.toml``."""
    path = resources.files("stepsight") / "data" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def area_names() -> list[str]:
    """Every area that has a file."""
    folder = resources.files("stepsight") / "data" / "constants"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
