"""The answer for a language model: step, interval, and where it goes, from its composed passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.workload.llm.config import LanguageConfig

METHOD_SPREAD = 0.05
"""What is left when every kernel and collective is right, on one node."""
NODE_SPREAD = 0.035
"""The same for every doubling of the nodes: networks, stragglers and layouts differ."""
REACH: Mapping[str, float] = {
    "eager": 1.51, "eager nodes": 0.91, "internevo": 0.3, "internevo nodes": 0.32, "llm-foundry": 0.86,
    "llm-foundry nodes": 0.39, "megatron": 1.0, "megatron experts": 1.28, "megatron experts nodes": 1.38,
    "megatron nodes": 0.4, "megatron-deepspeed": 1.07, "megatron-deepspeed nodes": 0.8, "nanotron": 0.49,
    "nanotron nodes": 0.46, "scaling nodes": 0.55, "torchtitan": 1.0, "torchtitan nodes": 0.6,
    "jax": 4.0, "jax nodes": 2.84,
}  # fmt: skip
"""By `spread_class`: times this the spread holds 90 % of the rows of the class, each predicted without its
group, in the state that its time tells (``lab fit llm`` prints them; sources of a class weigh equally).
Megatron's, torchtitan's and scaling's are those of an earlier fit, with which all rows of their sources do.
Not below 0.3."""
NODES = " nodes"
"""The end of a class over nodes."""
UNKNOWN_REACH = (2.5, 1.7)
"""The same for frameworks without rows, on one node and on many: rows predicted without their source."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""
SOURCE_SPREAD = 0.066
"""Standard deviation of ln(sustained clock) between 24 pairs of a published source and a GPU generation, as
`python -m lab fit llm` finds them: cooling, power limits and builds of libraries, unknown on a machine that
nobody has published steps of."""
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
    return answered(Composer(c, platform))


def answered(composer: Composer, *, known_source: bool = False) -> Quick:
    """The step of a priced configuration; ``known_source``: other steps of this machine set its constants."""
    c, platform = composer.c, composer.pricer.platform
    base = composer.step()
    spreads = {}
    for name in composer.names():
        slow = composer.step(name, "slow", HOST_SPREAD)
        spreads[name] = abs(slow.step_us / base.step_us - 1) if base.step_us > 0 else 0.0
    factor = interval_factor(c, platform, spreads.values(), known_source=known_source)
    return Quick(base.step_us, base.step_us / factor, base.step_us * factor, base, spreads)


def interval_factor(
    c: LanguageConfig, platform: Platform, spreads: Iterable[float], *, known_source: bool = False
) -> float:
    """How far the 90 % interval reaches each way.

    Rows over nodes come from few clusters, whose constants are known: on a machine that nobody measured, a
    job over nodes is no surer than one on a single node.
    """
    kind, spreads = spread_class(c, platform), tuple(spreads)
    spread = _reach(kind) * step_spread(c, platform, spreads)
    if known_source:
        return math.exp(INTERVAL_SIGMAS * spread)
    on_one_node = _reach(kind.removesuffix(NODES)) * math.hypot(METHOD_SPREAD, *spreads)
    return math.exp(INTERVAL_SIGMAS * math.hypot(max(spread, on_one_node), SOURCE_SPREAD))


def _reach(kind: str) -> float:
    return REACH.get(kind, UNKNOWN_REACH[kind.endswith(NODES)])


def spread_class(c: LanguageConfig, platform: Platform) -> str:
    """Configurations similar in what the method may miss: framework, experts, one node or many."""
    many = c.ranks > platform.spec.gpus_per_node
    experts = " experts" if c.model.experts else ""
    return f"{c.framework.name}{experts}{NODES if many else ''}"


def step_spread(c: LanguageConfig, platform: Platform, spreads: Iterable[float]) -> float:
    """The spread of the step from those of kernels, collectives and the host, and the number of nodes."""
    nodes = -(-c.ranks // platform.spec.gpus_per_node)
    return math.hypot(METHOD_SPREAD, NODE_SPREAD * math.log2(nodes), *spreads)


def naive_us(base: Composed) -> float:
    """The busiest stage's kernels or collectives, one stream each, without any waiting."""
    return max(max(sum(p.compute.values()), sum(p.communication.values())) for p in base.stages)
