"""What is assumed of a machine that nobody measured, before its own runs speak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepsight.constants import Basis
from stepsight.platform import evidence as parts


@dataclass(frozen=True, slots=True)
class Spread:
    """A standard deviation of a logarithm. ``shares_common``: of the common spread, what the part takes."""

    value: float
    basis: Basis
    shares_common: float = 1.0


def _part(value: float, rests_on: str, shares_common: float = 1.0) -> Spread:
    return Spread(value, Basis("ln(time)", rests_on, "what three runs move"), shares_common)


PRIOR: Mapping[str, Spread] = {
    parts.GEMM: _part(0.12, "chosen: clocks under load differ by power limit and cooling"),
    parts.ATTENTION: _part(0.2, "chosen: versions of attention kernels"),
    parts.MEMORY_BOUND: _part(0.2, "chosen: fusion and element types"),
    parts.EMBEDDING: _part(0.25, "chosen: index distributions are rarely known"),
    parts.HOST: _part(0.5, "chosen: processors and frameworks of one era differ by a factor of two"),
    parts.LINK: _part(0.25, "chosen: NVLink is the same everywhere, PCIe trees are not"),
    parts.NETWORK: _part(0.35, "chosen: NICs per GPU, RDMA and rails differ between clusters"),
    parts.DISTANCE: _part(0.15, "chosen: oversubscribed switches halve the rate at most", 0.0),
}
COMMON_SPREAD = _part(0.1, "chosen: what all runs of a machine share, whichever part it is")
UNEXPLAINED = Spread(
    0.7, Basis("share of a spread", "chosen: half of the variance", "how much one run moves")
)
UNEXPLAINED_SURENESS = Spread(0.5, Basis("ln(share)", "chosen", "how fast agreeing runs narrow the interval"))
OUTLIER_SPREAD = Spread(1.5, Basis("ln(time)", "chosen: any factor up to ten", "which runs are left out"))
OUTLIER_ODDS = Spread(0.02, Basis("probability", "chosen: one run in fifty", "which runs are left out"))
PRIOR_SCALES = ((0.25, 0.25), (0.5, 0.35), (1.0, 0.28), (2.0, 0.12))
"""Most machines are close to the usual one and a few are far off: multiples of all spreads, each with its
share (a Student t in four steps; chosen)."""
MEMORY_SPREAD = _part(0.1, "chosen: how far allocators of one stack are from the predicted peak together")
MEMORY_RUN_SPREAD = _part(0.05, "chosen: how far single runs are")
