"""The constants that a measured row is scored with: from a fit that its whole group took no part in.

``left_out.json`` is what ``python -m lab fit llm`` made: which rows it used, and for each of their groups
the constants fitted without it. A row that no fit has seen is scored with the fit of all others. Clock and
network belong to the site that a source measured on; the shipped constants are for sites nobody measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import msgspec

from stepsight.hardware.spec import GpuSpec
from stepsight.overheads.frameworks import profile_of
from stepsight.prediction.llm.compose import Composer, Knobs
from stepsight.simulate.sustained import sustained_key

FILE = "left_out.json"
USUAL_HOST_US = 14.0
"""Forward µs a launch where a framework's rows do not tell: `overheads.frameworks`, plain PyTorch."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted constants: forward µs a launch by framework; by source and `sustained_key`, its clock over the
    shipped one; by source, times that collectives over nodes take as long as the catalogue says."""

    host_us: Mapping[str, float]
    clock: Mapping[str, float]
    network: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One run of the fit: constants of all rows, those without each group, and the rows' numbers."""

    all: Constants
    without: Mapping[str, Constants]
    rows: frozenset[int] = field(default_factory=frozenset)

    def of(self, row: int, group: str) -> Constants:
        """What a row is scored with: the fit without its group, or if it took no part in any, that of all."""
        return self.without.get(group, self.all) if row in self.rows else self.all


def row_id(file: str, name: str) -> int:
    """Tells a configuration of a file from others, without its measured time."""
    return zlib.crc32(f"{file} {name}".encode())


@cache
def shipped_fit() -> LeftOut:
    """The fit that ships; empty where none does."""
    file = resources.files("lab.score.llm") / FILE
    if not file.is_file():
        return LeftOut(Constants({}, {}, {}), {})
    table = msgspec.json.decode(file.read_bytes())
    every = msgspec.convert(table["all"], Constants)
    without = {group: _changed(every, less) for group, less in table["without"].items()}
    return LeftOut(every, without, frozenset(table["rows"]))


def _changed(every: Constants, less: Mapping[str, Mapping[str, float]]) -> Constants:
    return Constants(
        {**every.host_us, **less.get("host_us", {})},
        {**every.clock, **less.get("clock", {})},
        {**every.network, **less.get("network", {})},
    )


def clock_key(source: str, gpu: GpuSpec, dtype: str) -> str:
    """Which clock a row feels: its site's, of that kind of GPU."""
    return f"{source} {sustained_key(gpu, dtype)}"


def is_known(source: str, row: int, group: str) -> bool:
    """Whether other rows of the source set its clock."""
    return any(key.startswith(f"{source} ") for key in shipped_fit().of(row, group).clock)


def scoring_knobs(composer: Composer, source: str, row: int, group: str) -> Knobs:
    """Factors on the shipped constants with which a row is scored."""
    constants = shipped_fit().of(row, group)
    c, gpu = composer.c, composer.pricer.platform.spec.gpu
    usual = profile_of(c.framework.name).forward_us
    clock = constants.clock.get(clock_key(source, gpu, c.training.product_dtype), 1.0)
    host = constants.host_us.get(c.framework.name, usual) / usual
    return Knobs(host, 1.0 / clock, constants.network.get(source, 1.0))
