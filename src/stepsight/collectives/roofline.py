"""What a collective must cost at least: steps × latency + bytes over the wire ÷ bandwidth.

The answer of last resort, where neither the platform nor a relative was measured, and the
common scale on which measured curves are carried from one group or link to another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsight.collectives.constants import KERNEL_FLOOR_US, LINK_EFFICIENCY
from stepsight.collectives.topology import GroupShape
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import LinkSpec, PlatformSpec


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes over each rank's link per byte of the collective (nccl-tests' convention)."""
    if ranks <= 1:
        return 0.0
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if kind in ("all_to_all", "all_to_allv", "all_gather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


def latency_steps(kind: str, ranks: int) -> int:
    """Hops in a row before the last rank is done: trees for reductions, direct sends otherwise."""
    if kind in ("all_to_all", "all_to_allv", "send_recv"):
        return 1
    depth = max(1, math.ceil(math.log2(ranks))) if ranks > 1 else 0
    return 2 * depth if kind == "all_reduce" else depth


@dataclass(frozen=True, slots=True)
class Line:
    """Latency plus bytes at a bandwidth: the simplest curve."""

    latency_us: float
    us_per_byte: float

    def time_us(self, bytes: npt.ArrayLike) -> FloatArray:
        return self.latency_us + np.asarray(bytes, dtype=np.float64) * self.us_per_byte


def roofline(kind: str, shape: GroupShape, platform: PlatformSpec) -> Line:
    """The latency-bandwidth line of a collective on the platform's data-sheet links."""
    link = slowest_link(shape, platform)
    share = remote_share(kind, shape)
    # Over the wire of the slowest link goes only what leaves the node, for exchanges.
    gbps = link.gbps if link.gbps > 0 else platform.gpu.pcie_gbps  # GPUs that no link joins
    us_per_byte = bus_factor(kind, shape.ranks) * share / (gbps * 1e3 * LINK_EFFICIENCY)
    latency = KERNEL_FLOOR_US + latency_steps(kind, shape.ranks) * link.latency_us
    return Line(latency, us_per_byte)


def slowest_link(shape: GroupShape, platform: PlatformSpec) -> LinkSpec:
    """The link that bounds a group: the NIC as soon as it leaves the node."""
    if shape.inside_a_node or platform.nic is None:
        return platform.link
    return platform.nic


def remote_share(kind: str, shape: GroupShape) -> float:
    """Part of a rank's remote bytes that leaves its node.

    Exchanges send to every rank directly. Ring reductions and gathers pass the whole buffer
    through the node's NICs once, shared by the ranks of the node.
    """
    if shape.inside_a_node:
        return 1.0
    if kind in ("all_to_all", "all_to_allv"):
        return (shape.ranks - shape.per_node) / (shape.ranks - 1)
    return 1.0 / shape.per_node
