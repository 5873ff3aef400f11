"""Where the ranks of a group sit: how many, on how many nodes, how many side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.errors import InputError
from stepsight.hardware.spec import PlatformSpec


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
            return f"{self.ranks} GPUs of one node"
        return f"{self.ranks} GPUs on {self.nodes} nodes"


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
            f"but the platform has {platform.ranks} GPUs",
            "choose a larger platform, or fewer ranks",
        )
    per_node = Counter(rank // platform.gpus_per_node for rank in ranks)
    return GroupShape(len(ranks), len(per_node), max(per_node.values()))
