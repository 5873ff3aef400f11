"""Runs in a slow state: a site's runs that lose a fixed time at every message, while others of nearly the
same configuration do not.

No configuration tells the state of one run for sure, but the share of slow runs depends on how a job is
spread. So a prediction on such a site is a mixture: how likely a run is slow, and what it then loses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

BLOCKING_MESSAGES = 4
"""Messages of a stage between two others for a micro-batch: an input and a gradient received, both sent."""


FEW_NODES = 16
"""Nodes from which on the share of slow runs grows faster."""
WIDE_NODES = 4
"""Nodes of a tensor group that is counted as wide."""
MANY_MICRO_BATCHES = 16
"""Micro-batches from which on replicas that keep whole gradients count as accumulating: runs with eight or
fewer were not slow."""


@dataclass(frozen=True, slots=True)
class JobLayout:
    """What the share of slow runs depends on: the nodes of the job and of a tensor group, the stages, the
    replicas, how likely the allocator would hold more than the usable memory (it then gives blocks back and
    asks for others), and the micro-batches over which each replica accumulates whole gradients (0 where
    gradients or optimizer are sharded)."""

    nodes: int
    tensor_nodes: int
    pipeline: int
    replicas: int
    overfull: float
    whole_gradients: int = 0

    def columns(self) -> dict[str, float]:
        """The columns of the logistic model."""
        piped = float(self.pipeline > 1)
        many = max(0.0, math.log2(self.nodes / FEW_NODES)) ** 4 / 4
        accumulating = self.whole_gradients >= MANY_MICRO_BATCHES and self.nodes <= FEW_NODES
        return {
            "one": 1.0,
            "doublings": math.log2(min(self.nodes, FEW_NODES)),
            "pipeline": piped,
            "replicated_pipeline": piped * (self.replicas > 1),
            "many_nodes": many,
            "many_nodes_pipeline": many * piped,
            "wide_tensor": piped * (self.tensor_nodes >= WIDE_NODES),
            "accumulating": piped * accumulating * math.log2(self.nodes),
            "full": self.overfull,
        }


@dataclass(frozen=True, slots=True)
class SlowOdds:
    """A logistic model of the share of slow runs, and how sure it is of itself.

    ``weights`` by column of `JobLayout`; ``covariance`` of their errors, row by row in the same order (none:
    they are certain).
    """

    weights: Mapping[str, float]
    covariance: tuple[tuple[float, ...], ...] = ()

    def probability(self, columns: Mapping[str, float]) -> float:
        """The share, as a mean over what the weights may be: where little is known it lies near one half.

        The mean of a logistic function over a normal distribution is that function of the mean drawn
        towards zero (MacKay, The evidence framework applied to classification networks, 1992).
        """
        x = [columns.get(name, 0.0) for name in self.weights]
        mean = sum(weight * value for weight, value in zip(self.weights.values(), x, strict=True))
        variance = sum(
            a * b * c for a, row in zip(x, self.covariance, strict=False) for b, c in zip(x, row, strict=True)
        )
        return 1 / (1 + math.exp(-mean / math.sqrt(1 + math.pi / 8 * variance)))


@dataclass(frozen=True, slots=True)
class Stalls:
    """A site's slow state.

    ``message_us``: lost at every message between stages. ``collective_us``: without a pipeline, lost at every
    tensor collective for each of its ranks. ``odds``: how likely a run is slow.
    """

    message_us: float
    collective_us: float
    odds: SlowOdds

    def probability(self, layout: JobLayout) -> float:
        """How likely a run is slow; on one node none is."""
        return self.odds.probability(layout.columns()) if layout.nodes > 1 else 0.0

    def lost_us(self, pipeline: int, tensor: int, tensor_collectives: float) -> float:
        """What a slow run loses on each micro-batch, on its busiest stage."""
        if pipeline > 1:
            return self.message_us * min(BLOCKING_MESSAGES, 2 * (pipeline - 1))
        return self.collective_us * tensor * tensor_collectives if tensor > 1 else 0.0
