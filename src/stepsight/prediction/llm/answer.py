"""The answer for a language model: step, interval, and where it goes, from its composed passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.prediction.llm.slow_runs import Mixture, mixture
from stepsight.workload.llm.config import LanguageConfig

METHOD_SPREAD = 0.05
"""What is left when every kernel and collective is right, on one node."""
NODE_SPREAD = 0.035
"""The same for every doubling of the nodes: networks, stragglers and layouts differ."""
REACH: Mapping[str, float] = {
    "eager": 1.42, "eager nodes": 0.71, "internevo": 0.3, "internevo nodes": 0.3, "llm-foundry": 0.86,
    "llm-foundry nodes": 0.38, "megatron": 1.0, "megatron experts": 1.28, "megatron experts nodes": 1.08,
    "megatron nodes": 0.39, "megatron-deepspeed": 1.05, "megatron-deepspeed nodes": 0.78, "nanotron": 0.85,
    "nanotron nodes": 0.5, "scaling nodes": 0.55, "torchtitan": 1.0, "torchtitan nodes": 0.6,
    "jax": 4.0, "jax nodes": 2.85,
}  # fmt: skip
"""By `spread_class`: times this the spread holds 90 % of the rows of the class, each predicted without its
group (``stepsight fit llm`` prints them). Not below 0.3; nanotron's over nodes is that with which the
interval over the usual and the slow state (`slow_runs`) holds 92 % of its 784 rows."""
UNKNOWN_REACH = (2.5, 1.7)
"""The same for frameworks without rows, on one node and on many: rows predicted without their source."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""
SOURCE_SPREAD = 0.066
"""Standard deviation of ln(sustained clock) between 24 pairs of a published source and a GPU generation, as
`stepsight fit llm` finds them: cooling, power limits and builds of libraries, unknown on a machine that
nobody has published steps of."""
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


def answered(composer: Composer, *, known_source: bool = False) -> Quick:
    """The step of a priced configuration; ``known_source``: other steps of this machine set its constants."""
    c, platform = composer.c, composer.pricer.platform
    base = composer.step()
    spreads = {}
    for name in composer.names():
        slow = composer.step(name, "slow", HOST_SPREAD)
        spreads[name] = abs(slow.step_us / base.step_us - 1) if base.step_us > 0 else 0.0
    runs = mixture(composer, base)
    factor = interval_factor(c, platform, spreads.values(), known_source=known_source)
    low, high = runs.interval(factor)
    return Quick(runs.stated.step_us, low, high, runs.stated, spreads, runs)


def interval_factor(
    c: LanguageConfig, platform: Platform, spreads: Iterable[float], *, known_source: bool = False
) -> float:
    """How far the 90 % interval reaches each way."""
    kind = spread_class(c, platform)
    reach = REACH.get(kind, UNKNOWN_REACH[kind.endswith(" nodes")])
    spread = reach * step_spread(c, platform, spreads)
    return math.exp(INTERVAL_SIGMAS * (spread if known_source else math.hypot(spread, SOURCE_SPREAD)))


def spread_class(c: LanguageConfig, platform: Platform) -> str:
    """Configurations alike in what the method may miss: framework, experts, one node or many."""
    many = c.ranks > platform.spec.gpus_per_node
    experts = " experts" if c.model.experts else ""
    return f"{c.framework.name}{experts}{' nodes' if many else ''}"


def step_spread(c: LanguageConfig, platform: Platform, spreads: Iterable[float]) -> float:
    """The spread of the step from those of kernels, collectives and the host, and the number of nodes."""
    nodes = -(-c.ranks // platform.spec.gpus_per_node)
    return math.hypot(METHOD_SPREAD, NODE_SPREAD * math.log2(nodes), *spreads)


def naive_us(base: Composed) -> float:
    """The busiest stage's kernels or collectives, one stream each, without any waiting."""
    return max(max(sum(p.compute.values()), sum(p.communication.values())) for p in base.stages)
