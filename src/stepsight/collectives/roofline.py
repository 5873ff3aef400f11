"""What a collective must cost at least: steps × latency + bytes over the wire ÷ bandwidth.

The answer of last resort, where neither the platform nor a relative was measured, and the
common scale on which measured curves are carried from one group or link to another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import LinkSpec, PlatformSpec
from stepsight.terminal import counted

C = area("collectives")
PCIE_SHARE = C.by_name("PCIE_SHARE")
ONE_WAY = ("broadcast", "reduce")


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes over each rank's link per byte of the collective (nccl-tests' convention)."""
    if ranks <= 1:
        return 0.0
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if kind in ("all_to_all", "all_to_allv", "all_gather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


def pcie_gbps(kind: str, ranks: int, link: LinkSpec) -> float:
    """Bus bandwidth of large messages over PCIe in GB/s.

    Two peers write to each other at the link's rate. More of them share root complexes and the sockets'
    interconnect. Without peer access every byte is written to host memory and read from there. Chains in one
    direction (broadcast, reduce) load a link one way only.
    """
    if kind in ONE_WAY:
        share = PCIE_SHARE["one_way"]
    elif not link.peer_access:
        share = PCIE_SHARE["staged"]
    else:
        share = PCIE_SHARE["peer_pair" if ranks <= 2 else "peer"]
    return share * link.gbps


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
    us_per_byte = bus_factor(kind, shape.ranks) * share / (gbps * 1e3 * C.LINK_EFFICIENCY)
    latency = C.KERNEL_FLOOR_US + latency_steps(kind, shape.ranks) * link.latency_us
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


@dataclass(frozen=True, slots=True)
class GroupShape:
    """All that a group's time depends on: its size and how it lies over the nodes.

    ``per_node`` is the largest number of its ranks on one node.
    """

    ranks: int
    nodes: int
    per_node: int

    @property
    def inside_a_node(self) -> bool:
        return self.nodes == 1

    def __str__(self) -> str:
        if self.inside_a_node:
            return f"{counted(self.ranks, 'GPU')} of one node"
        return f"{self.ranks} GPUs on {self.nodes} nodes"


def worst_placed(ranks: tuple[int, ...], platform: PlatformSpec) -> tuple[int, ...]:
    """Of the groups into which a job cuts its ranks the one over most nodes, where ``ranks`` is the first of
    them: groups of 64 in racks of 72 cross from one to the next."""
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    unit, per_node = len(ranks) * stride, platform.gpus_per_node
    whole = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + unit, stride))
    if not whole or platform.nodes == 1 or per_node % unit == 0 or unit % per_node == 0:
        return ranks
    shifts = range(0, min(platform.ranks - ranks[-1], unit * per_node), unit)
    return max(
        (tuple(rank + shift for rank in ranks) for shift in shifts),
        key=lambda group: len({rank // per_node for rank in group}),
    )


def group_shape(ranks: Sequence[int], platform: PlatformSpec) -> GroupShape:
    """The shape of a group of global ranks on a platform; ranks fill the nodes in order."""
    if not ranks:
        raise InputError(f"platform {platform.name}", "a process group without ranks", "name at least one")
    if len(set(ranks)) != len(ranks):
        raise InputError(
            f"platform {platform.name}", f"process group {tuple(ranks)} names a rank twice", "name each once"
        )
    if min(ranks) < 0 or max(ranks) >= platform.ranks:
        raise InputError(
            f"platform {platform.name}",
            f"a process group names rank {max(ranks) if min(ranks) >= 0 else min(ranks)}, "
            f"but the platform has {counted(platform.ranks, 'GPU')}",
            "choose a larger platform, or fewer ranks",
        )
    per_node = Counter(rank // platform.gpus_per_node for rank in ranks)
    return GroupShape(len(ranks), len(per_node), max(per_node.values()))
