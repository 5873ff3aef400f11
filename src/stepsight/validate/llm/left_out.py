"""The constants that a measured row is scored with: from a fit that its whole group took no part in.

``left_out.json`` is what ``stepsight fit llm`` made: which rows it used, and for each of their groups
the constants fitted without it. A row that no fit has seen is scored with the shipped constants.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import msgspec
import numpy as np

from stepsight.overheads.frameworks import profile_of
from stepsight.prediction.llm.compose import AS_SHIPPED, Composer, Knobs
from stepsight.simulate.sustained import sustained_key, sustained_share

FILE = "left_out.json"
USUAL_HOST_US = 14.0
"""Forward µs a launch where a framework's rows do not tell: `overheads.frameworks`, plain PyTorch."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted constants: forward µs a launch by framework, share of the benchmark's clock by
    `sustained_key`, times the catalogue's time over nodes by file with a site."""

    host_us: Mapping[str, float]
    sustained: Mapping[str, float]
    network: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One run of the fit: constants of all rows, those without each group, and the rows' numbers."""

    all: Constants
    without: Mapping[str, Constants]
    rows: frozenset[int] = field(default_factory=frozenset)

    def of(self, row: int, group: str) -> Constants | None:
        """What a row is scored with; None: the shipped constants, which it took no part in."""
        return self.without.get(group) if row in self.rows else None


def row_id(file: str, name: str) -> int:
    """Tells a configuration of a file from others, without its measured time."""
    return zlib.crc32(f"{file} {name}".encode())


@cache
def shipped_fit() -> LeftOut:
    """The fit that ships; empty where none does."""
    file = resources.files("stepsight.validate.llm") / FILE
    if not file.is_file():
        return LeftOut(Constants({}, {}, {}), {})
    table = msgspec.json.decode(file.read_bytes())
    every = msgspec.convert(table["all"], Constants)
    without = {group: _changed(every, less) for group, less in table["without"].items()}
    return LeftOut(every, without, frozenset(table["rows"]))


def _changed(every: Constants, less: Mapping[str, Mapping[str, float]]) -> Constants:
    return Constants(
        {**every.host_us, **less.get("host_us", {})},
        {**every.sustained, **less.get("sustained", {})},
        {**every.network, **less.get("network", {})},
    )


def scoring_knobs(composer: Composer, file: str, row: int, group: str) -> Knobs:
    """Factors on the shipped constants with which a row is scored."""
    constants = shipped_fit().of(row, group)
    return AS_SHIPPED if constants is None else knobs(constants, composer, file)


def knobs(constants: Constants, composer: Composer, file: str) -> Knobs:
    """Factors on the shipped constants that give a configuration these."""
    c, gpu = composer.c, composer.pricer.platform.spec.gpu
    name, key = c.framework.name, sustained_key(gpu, c.training.product_dtype)
    host = constants.host_us.get(name, _middle(constants.host_us)) / profile_of(name).forward_us
    share = constants.sustained.get(key) or sustained_share(key)
    return Knobs(host, sustained_share(key) / share, constants.network.get(file, 1.0))


def _middle(values: Mapping[str, float]) -> float:
    """For a framework without rows: as the median of the others."""
    return float(np.median(list(values.values()))) if values else USUAL_HOST_US
