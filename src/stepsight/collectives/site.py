"""A cluster's own measured bandwidth over nodes: what was measured there beats what is carried over.

Few sites measure whole curves; many know one figure a node count, such as the bus bandwidth of a large
all_reduce. Each figure scales the carried curve of groups over that many nodes at every size; between
measured counts the factor is interpolated, beyond the last it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepsight.collectives.constants import SITE_SPREAD
from stepsight.collectives.models import CollectiveModels
from stepsight.collectives.roofline import bus_factor
from stepsight.collectives.topology import group_shape
from stepsight.estimate import Estimates


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """Bus bandwidth in GB/s of one large message, by kind and number of nodes.

    ``hop_us``: what every further node adds to a collective that compute waits for, however small.
    ``axes``: the axes of parallelism that the figures were taken for. ``stage_stall_us``: what a pipeline
    over at least so many nodes loses on every micro-batch.
    """

    bytes: float
    gbps: Mapping[str, Mapping[int, float]]
    hop_us: float = 0.0
    axes: tuple[str, ...] = ("tensor",)
    stage_stall_us: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteCollectives:
    """A platform's models, scaled to what its cluster really reaches."""

    models: CollectiveModels
    site: SiteBandwidth
    _factors: dict[tuple[str, int], float] = field(default_factory=dict, repr=False, compare=False)

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """As `CollectiveModels.estimate`."""
        found = self.models.estimate(kind, bytes, ranks)
        nodes = group_shape(ranks, self.models.platform).nodes
        measured = self.site.gbps.get(kind) or self.site.gbps.get("all_gather")
        if nodes == 1 or not measured:
            return found
        key = (kind, nodes)
        if key not in self._factors:
            self._factors[key] = self._factor(kind, nodes, measured)
        spread = np.hypot(found.spread, SITE_SPREAD)
        return Estimates(found.time_us * self._factors[key], found.source, spread, found.notes)

    def _factor(self, kind: str, nodes: int, measured: Mapping[int, float]) -> float:
        """The carried curve's bandwidth over the measured one, for all GPUs of so many nodes."""
        counts = sorted(n for n in measured if n > 1)
        logs = []
        for count in counts:
            ranks = min(count, self.models.platform.nodes) * self.models.platform.gpus_per_node
            name = kind if kind in self.site.gbps else "all_gather"
            us = float(self.models.estimate(name, [self.site.bytes], range(ranks)).time_us[0])
            ours = bus_factor(name, ranks) * self.site.bytes / us / 1e3
            logs.append(np.log(ours / measured[count]))
        return float(np.exp(np.interp(np.log2(nodes), np.log2(counts), logs)))
