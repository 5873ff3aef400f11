"""The answer for a language model: step, interval, and where it goes, from its composed passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.prediction.llm.slow_runs import Mixture, mixture
from stepsight.workload.llm.config import LanguageConfig

METHOD_SPREAD: Mapping[str, float] = {}
"""What is left when every kernel and collective is right, by `spread_class`: with it 90 % of the rows
of the class lie inside, each predicted without its group (``stepsight fit llm`` prints them)."""
UNKNOWN_SPREAD = (0.10, 0.16)
"""The same for frameworks without rows, on one node and on many: rows predicted without their source."""
NODE_SPREAD = 0.035
"""What every doubling of the nodes adds: networks, stragglers and layouts differ."""
EXPERT_SPREAD = 0.18
"""The same for mixtures of experts of frameworks without rows of them."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""
HOST_SPREAD = 0.12
"""Host work of a framework on another machine of the same era."""


@dataclass(frozen=True, slots=True)
class Quick:
    """Step time and 90 % interval in µs, with the composed parts of the state that is stated."""

    step_us: float
    low_us: float
    high_us: float
    composed: Composed
    spreads: dict[str, float]
    runs: Mixture


def quick(c: LanguageConfig, platform: Platform) -> Quick:
    """The step without a timeline: for searches and scores over thousands of configurations."""
    return answered(Composer(c, platform))


def answered(composer: Composer) -> Quick:
    """The step of a priced configuration."""
    c, platform = composer.c, composer.pricer.platform
    base = composer.step()
    spreads = {}
    for name in composer.names():
        slow = composer.step(name, "slow", HOST_SPREAD)
        spreads[name] = abs(slow.step_us / base.step_us - 1) if base.step_us > 0 else 0.0
    runs = mixture(composer, base)
    low, high = runs.interval(interval_factor(c, platform, spreads.values()))
    return Quick(runs.stated.step_us, low, high, runs.stated, spreads, runs)


def interval_factor(c: LanguageConfig, platform: Platform, spreads: Iterable[float]) -> float:
    """How far the 90 % interval reaches each way."""
    sigma = math.hypot(method_spread(c, platform), other_spread(c, platform, spreads))
    return math.exp(INTERVAL_SIGMAS * sigma)


def spread_class(c: LanguageConfig, platform: Platform) -> str:
    """Rows alike in what the method may miss: framework, experts, one node or many."""
    many = c.ranks > platform.spec.gpus_per_node
    experts = " experts" if c.model.experts else ""
    return f"{c.framework.name}{experts}{' nodes' if many else ''}"


def method_spread(c: LanguageConfig, platform: Platform) -> float:
    """The spread of a class of configurations beside that of kernels, collectives and host."""
    kind = spread_class(c, platform)
    if kind in METHOD_SPREAD:
        return METHOD_SPREAD[kind]
    return math.hypot(UNKNOWN_SPREAD[kind.endswith(" nodes")], EXPERT_SPREAD if c.model.experts else 0.0)


def other_spread(c: LanguageConfig, platform: Platform, spreads: Iterable[float]) -> float:
    """What kernels, collectives and the host contribute, and the number of nodes."""
    nodes = -(-c.ranks // platform.spec.gpus_per_node)
    return math.hypot(NODE_SPREAD * math.log2(nodes), *spreads)


def naive_us(base: Composed) -> float:
    """The busiest stage's kernels or collectives, one stream each, without any waiting."""
    return max(max(sum(p.compute.values()), sum(p.communication.values())) for p in base.stages)
