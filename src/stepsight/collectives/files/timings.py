"""One measured collective: what benchmark outputs and platform files are read into."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stepsight.errors import StepsightError
from stepsight.limits import check


@dataclass(frozen=True, slots=True)
class Timing:
    """One message size of one collective on one group, as it was measured."""

    kind: str
    ranks: int
    nodes: int
    bytes: float
    time_us: float

    def check(self) -> None:
        """Refuse what no benchmark can have measured."""
        if not (math.isfinite(self.bytes) and math.isfinite(self.time_us)):
            raise StepsightError("a size or time that is not a number")
        if self.time_us <= 0:
            raise StepsightError(
                f"a time of {self.time_us:g} µs for {self.bytes:g} bytes: nothing was measured"
            )
        if self.bytes <= 0:
            raise StepsightError(f"a message of {self.bytes:g} bytes")
        if self.ranks < 1 or self.nodes < 1 or self.nodes > self.ranks:
            raise StepsightError(f"a group of {self.ranks} ranks on {self.nodes} nodes")
        check(self.ranks, "RANKS", "a group", "its number of ranks")


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """What one benchmark output holds, and what of it was left out and why."""

    timings: tuple[Timing, ...]
    skipped: tuple[str, ...] = ()
    gpu: str = field(default="")
