"""What the hosts of a site's runs do beside their framework's work: some runs are slow, while others of
nearly the same configuration are not.

No configuration tells the state of one run for sure, but the share of slow runs depends on how a job is
spread. So a prediction on such a site is a mixture: how likely a run is slow, and how long it then takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

FEW_NODES = 16
"""Nodes from which on the share of slow runs grows faster."""
WIDE_NODES = 4
"""Nodes of a tensor group that is counted as wide."""
MANY_MICRO_BATCHES = 16
"""Micro-batches from which on replicas that keep whole gradients count as accumulating: runs with eight or
fewer were not slow."""
LARGE = 40e9
"""Parameters of a model that was run again with whole gradients, too: the benchmark's script says "model<80"
beside its choice of ZeRO 0."""
ACCUMULATING_NODES = 8
"""Nodes from which on pipelines that accumulate whole gradients are all slow."""


@dataclass(frozen=True, slots=True)
class HostState:
    """How the hosts of a run behave.

    ``check_us``: before a collective of a tensor group or a bucket of gradients runs, the hosts of its group
    agree on it, which takes each of them so long for every rank of the group, as PyTorch's checks do
    (``TORCH_DISTRIBUTED_DEBUG=DETAIL``).
    ``poll_us``: hosts of neighbouring stages look this often whether a message went through.
    """

    check_us: float = 0.0
    poll_us: float = 0.0


PLAIN = HostState()
"""Neither."""


@dataclass(frozen=True, slots=True)
class JobLayout:
    """What the share of slow runs depends on: the nodes of the job and of a tensor group, the stages, the
    replicas, the micro-batches over which each replica accumulates whole gradients (0 where gradients or
    optimizer are sharded), the samples of a micro-batch, the model's parameters, and how likely a run that is
    not slow would not fit: its hosts run ahead of the devices and hold more memory."""

    nodes: int
    tensor_nodes: int
    pipeline: int
    replicas: int
    overfull: float
    whole_gradients: int = 0
    micro_batch: int = 1
    parameters: float = 0.0

    def columns(self) -> dict[str, float]:
        """The columns of the logistic model."""
        piped = float(self.pipeline > 1)
        many = max(0.0, math.log2(self.nodes / FEW_NODES)) ** 4 / 4
        accumulating = self.whole_gradients >= MANY_MICRO_BATCHES and self.parameters < LARGE
        wide = self.tensor_nodes >= WIDE_NODES
        batched = self.micro_batch > 1 and self.replicas > 1 and self.nodes <= FEW_NODES
        return {
            "one": 1.0,
            "doublings": math.log2(min(self.nodes, FEW_NODES)),
            "pipeline": piped,
            "replicated_pipeline": piped * (self.replicas > 1),
            "many_nodes": many,
            "many_nodes_pipeline": many * piped,
            "wide_tensor": piped * wide,
            "batched_wide_tensor": (1.0 - piped) * wide * batched,
            "accumulating": piped * accumulating * math.log2(min(self.nodes, ACCUMULATING_NODES)),
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
    """What the hosts of a site's runs do beside their framework's work, and how likely a run is slow.

    Every pipeline over nodes there checks its tensor collectives (``check_us``); a slow one also polls
    (``poll_us``). Without a pipeline a slow run checks, the others do not. Both are those of `HostState`.
    """

    check_us: float
    poll_us: float
    odds: SlowOdds

    def usual(self, nodes: int, pipeline: int) -> HostState:
        """A run that is not slow."""
        return HostState(self.check_us) if nodes > 1 and pipeline > 1 else PLAIN

    def slow(self, nodes: int, pipeline: int) -> HostState:
        """A run that is."""
        if nodes == 1:
            return PLAIN
        return HostState(self.check_us, self.poll_us if pipeline > 1 else 0.0)

    def probability(self, layout: JobLayout) -> float:
        """How likely a run will be slow; on one node none is."""
        return self.odds.probability(layout.columns()) if layout.nodes > 1 else 0.0

    def measured_probability(self, layout: JobLayout) -> float:
        """How likely a run that was measured is slow: by the odds, or because no other fits."""
        if layout.nodes == 1:
            return 0.0
        return 1 - (1 - self.probability(layout)) * (1 - layout.overfull)
