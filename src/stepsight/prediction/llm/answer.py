"""The answer for a language model: step, interval, and where it goes, from its composed passes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.workload.llm.config import LanguageConfig

METHOD_SPREAD = 0.05
"""What is left when every kernel and collective is right, on one node."""
NODE_SPREAD = 0.035
"""The same for every doubling of the nodes: networks, stragglers and layouts differ."""
EXPERT_SPREAD = 0.18
"""The same for mixtures of experts: grouped products, routing and the overlap of exchanges differ by release
(NeMo's published rows)."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""
HOST_SPREAD = 0.12
"""Host work of a framework on another machine of the same era."""


@dataclass(frozen=True, slots=True)
class Quick:
    """Step time and 90 % interval in µs, with the composed parts."""

    step_us: float
    low_us: float
    high_us: float
    composed: Composed
    spreads: dict[str, float]


def quick(c: LanguageConfig, platform: Platform) -> Quick:
    """The step without a timeline: for searches and scores over thousands of configurations."""
    composer = Composer(c, platform)
    base = composer.step()
    spreads = {}
    for name in composer.names():
        slow = composer.step(name, "slow", HOST_SPREAD)
        spreads[name] = abs(slow.step_us / base.step_us - 1) if base.step_us > 0 else 0.0
    factor = interval_factor(c, platform, spreads.values())
    return Quick(base.step_us, base.step_us / factor, base.step_us * factor, base, spreads)


def interval_factor(c: LanguageConfig, platform: Platform, spreads: Iterable[float]) -> float:
    """How far the 90 % interval reaches each way."""
    nodes = -(-c.ranks // platform.spec.gpus_per_node)
    over_nodes = NODE_SPREAD * math.log2(nodes)
    experts = EXPERT_SPREAD if c.model.experts else 0.0
    sigma = math.sqrt(METHOD_SPREAD**2 + over_nodes**2 + experts**2 + sum(s * s for s in spreads))
    return math.exp(INTERVAL_SIGMAS * sigma)


def naive_us(base: Composed) -> float:
    """The busiest stage's kernels or collectives, one stream each, without any waiting."""
    return max(max(sum(p.compute.values()), sum(p.communication.values())) for p in base.stages)
