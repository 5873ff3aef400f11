"""A cluster's own measured bandwidth over nodes: what was measured there beats what is carried over.

Few sites measure whole curves; many know one figure a node count, such as the bus bandwidth of a large
all_reduce. Each figure scales the carried curve of groups over that many nodes at every size; between
measured counts the factor is interpolated, beyond the last it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsight.collectives.roofline import bus_factor, group_shape
from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import Estimates
from stepsight.hardware.spec import PlatformSpec
from stepsight.inputs import number
from stepsight.program.job import COLLECTIVE_KINDS
from stepsight.records import nearest, section

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels

C = area("collectives")


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """Bus bandwidth in GB/s of one large message, by kind and number of nodes.

    ``hop_us``: what every doubling of the nodes adds to a collective, however small.
    ``axes``: the axes of parallelism that the figures were taken for; none: every group over nodes.
    """

    bytes: float
    gbps: Mapping[str, Mapping[int, float]]
    hop_us: float = 0.0
    axes: tuple[str, ...] = ()

    @property
    def every_axis(self) -> bool:
        return not self.axes

    def of(self, axis: str) -> SiteBandwidth | None:
        """The figures for an axis, where there are some."""
        return self if self.every_axis or axis in self.axes else None


@dataclass(frozen=True, slots=True)
class SiteCollectives:
    """A platform's models, scaled to what its cluster really reaches."""

    models: CollectiveModels
    site: SiteBandwidth
    _factors: dict[tuple[str, int], float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def platform(self) -> PlatformSpec:
        return self.models.platform

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """As `CollectiveModels.estimate`."""
        found = self.models.estimate(kind, bytes, ranks)
        nodes = group_shape(ranks, self.models.platform).nodes
        measured = self.site.gbps.get(kind) or self.site.gbps.get("all_gather")
        if nodes == 1 or not measured:
            return found
        hop_us = self.site.hop_us * np.log2(nodes)
        key = (kind, nodes)
        if key not in self._factors:
            self._factors[key] = self._factor(kind, nodes, measured)
        spread = np.hypot(found.spread, C.SITE_SPREAD)
        return Estimates(found.time_us * self._factors[key] + hop_us, found.source, spread, found.notes)

    def _factor(self, kind: str, nodes: int, measured: Mapping[int, float]) -> float:
        """The carried curve's bandwidth over the measured one, for all GPUs of this number of nodes."""
        counts = sorted(n for n in measured if n > 1)
        logs = []
        for count in counts:
            ranks = min(count, self.models.platform.nodes) * self.models.platform.gpus_per_node
            name = kind if kind in self.site.gbps else "all_gather"
            us = float(self.models.estimate(name, [self.site.bytes], range(ranks)).time_us[0])
            ours = bus_factor(name, ranks) * self.site.bytes / us / 1e3
            logs.append(np.log(ours / measured[count]))
        return float(np.exp(np.interp(np.log2(nodes), np.log2(counts), logs)))


AXES = ("tensor", "context", "expert", "data", "shard", "copies", "expert data", "world")
FIELDS = ("bytes", "gbps", "hop_us", "axes")
LEAST = 1e-6


def read_site(given: Any, where: str) -> SiteBandwidth:
    """``[site]``: bus bandwidth in GB/s of one message by kind and number of nodes.

    ``bytes`` (default 256 MB), ``gbps.all_gather = { 2 = 185, 4 = 119 }``, ``hop_us`` (a further node's
    latency), ``axes`` (of parallelism that it holds for; all by default).
    """
    given = section(given, FIELDS, where)
    rates = given.get("gbps")
    if not isinstance(rates, dict) or not rates:
        raise InputError(f"{where}.gbps", "is missing", "for example gbps.all_reduce = { 2 = 185, 4 = 119 }")
    axes = given.get("axes", [])
    if not isinstance(axes, list) or any(axis not in AXES for axis in axes):
        raise InputError(f"{where}.axes", f"is {axes!r}", f"a list of {', '.join(AXES)}")
    return SiteBandwidth(
        number(given.get("bytes", 256e6), f"{where}.bytes", least=LEAST),
        {kind: _by_nodes(kind, each, f"{where}.gbps") for kind, each in rates.items()},
        hop_us=number(given.get("hop_us", 0.0), f"{where}.hop_us", least=0.0),
        axes=tuple(axes),
    )


def _by_nodes(kind: str, given: Any, where: str) -> dict[int, float]:
    if kind not in COLLECTIVE_KINDS:
        raise InputError(f"{where}.{kind}", "unknown collective", nearest(kind, COLLECTIVE_KINDS))
    if not isinstance(given, dict) or not given:
        raise InputError(
            f"{where}.{kind}", f"is {given!r}", "bandwidth by nodes, such as { 2 = 185, 4 = 119 }"
        )
    found = {}
    for nodes, rate in given.items():
        if not str(nodes).isdigit() or int(nodes) < 2:
            raise InputError(f"{where}.{kind}.{nodes}", "is not a number of nodes", "use 2 or more")
        found[int(nodes)] = number(rate, f"{where}.{kind}.{nodes}", least=LEAST)
    return found
