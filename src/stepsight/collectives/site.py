"""A cluster's own measured bandwidth over nodes: what was measured there beats what is carried over.

Few sites measure whole curves; many know one figure a node count, such as the bus bandwidth of a large
all_reduce. Each figure scales the carried curve of groups over that many nodes at every size; between
measured counts the factor is interpolated, beyond the last it stays.
"""

from __future__ import annotations

import math
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
from stepsight.program.job import COLLECTIVE_KINDS
from stepsight.records import nearest

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels

_CONSTANTS = area("collectives")
SITE_SPREAD = _CONSTANTS.number("SITE_SPREAD")


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """Bus bandwidth in GB/s of one large message, by kind and number of nodes.

    ``hop_us``: what every doubling of the nodes adds to a collective, however small.
    ``axes``: the axes of parallelism that the figures were taken for; none: every group over nodes.
    ``also``: figures for other axes.
    ``node_share``: the figures are a node's, and groups with one GPU on a node reach (1/GPUs of a node) to
    this power of them, as the groups of its other GPUs use the same network at the same time; without it the
    figures scale the carried curve.
    """

    bytes: float
    gbps: Mapping[str, Mapping[int, float]]
    hop_us: float = 0.0
    axes: tuple[str, ...] = ()
    also: SiteBandwidth | None = None
    node_share: float | None = None

    @property
    def every_axis(self) -> bool:
        return not self.axes

    def of(self, axis: str) -> SiteBandwidth | None:
        """The figures for an axis, where there are some."""
        if self.every_axis or axis in self.axes:
            return self
        return self.also.of(axis) if self.also is not None else None


SMALL_BYTES = 8.0
"""A message that takes as long as one of any smaller size: the latency."""


def _between(measured: Mapping[int, float], nodes: int) -> float:
    """Bandwidth at a number of nodes, between and beyond measured ones."""
    counts = sorted(measured)
    return float(np.exp(np.interp(np.log2(nodes), np.log2(counts), np.log([measured[n] for n in counts]))))


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
        if self.site.node_share is not None:
            rate = _between(measured, nodes) * self._share(len(ranks) / nodes)
            moved_us = bus_factor(kind, len(ranks)) * np.asarray(bytes, dtype=float) / rate / 1e3
            first_us = self.models.estimate(kind, [SMALL_BYTES], ranks).time_us[0]
            return Estimates(
                first_us + moved_us + hop_us, found.source, np.hypot(found.spread, SITE_SPREAD), found.notes
            )
        key = (kind, nodes)
        if key not in self._factors:
            self._factors[key] = self._factor(kind, nodes, measured)
        spread = np.hypot(found.spread, SITE_SPREAD)
        return Estimates(found.time_us * self._factors[key] + hop_us, found.source, spread, found.notes)

    def _share(self, per_node: float) -> float:
        """What a group reaches of its nodes' bandwidth, by its GPUs on each."""
        return float((per_node / self.models.platform.gpus_per_node) ** (self.site.node_share or 0.0))

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


def read_site(given: Any, where: str) -> SiteBandwidth:
    """``[site]``: bus bandwidth in GB/s of one message by kind and number of nodes.

    ``bytes`` (default 256 MB), ``gbps.all_gather = { 2 = 185, 4 = 119 }``, ``hop_us`` (a further node's
    latency), ``axes`` (of parallelism that it holds for; all by default).
    """
    if not isinstance(given, dict):
        raise InputError(where, f"must be a table, not {given!r}", "write it as [site]")
    for key in given:
        if key not in FIELDS:
            raise InputError(f"{where}.{key}", "unknown key", nearest(key, FIELDS))
    rates = given.get("gbps")
    if not isinstance(rates, dict) or not rates:
        raise InputError(f"{where}.gbps", "is missing", "for example gbps.all_reduce = { 2 = 185, 4 = 119 }")
    axes = given.get("axes", [])
    if not isinstance(axes, list) or any(axis not in AXES for axis in axes):
        raise InputError(f"{where}.axes", f"is {axes!r}", f"a list of {', '.join(AXES)}")
    return SiteBandwidth(
        _above_zero(given.get("bytes", 256e6), f"{where}.bytes"),
        {kind: _by_nodes(kind, each, f"{where}.gbps") for kind, each in rates.items()},
        hop_us=_above_zero(given["hop_us"], f"{where}.hop_us") if "hop_us" in given else 0.0,
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
        found[int(nodes)] = _above_zero(rate, f"{where}.{kind}.{nodes}")
    return found


def _above_zero(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(where, f"is {value!r}", "give a positive number")
    return float(value)
