"""The answer for a language model: step, interval, and where it goes, from its walk by blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.breakdown import EXPOSED, HOST, WAITING, Sensitivity
from stepsight.simulate.blocks import AS_PRICED, PIPELINE, BlockWalk, Question, axis_of
from stepsight.simulate.price import COMMUNICATION
from stepsight.workload.llm.build import schedule
from stepsight.workload.llm.config import LanguageConfig

AXES = ("tensor", "context", "expert", "data", "shard", "copies", "expert data", "world", PIPELINE)
"""Axes of parallelism by the names of their groups."""
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


BLOCKS = 4
"""Micro-batches of a pipeline's steady part that are walked; the others advance as the last of them."""


@dataclass(frozen=True, slots=True)
class Quick:
    """Step time and 90 % interval in µs; by category of kernels, axis of communication and host: how far the
    step moves with the spread of its times."""

    step_us: float
    low_us: float
    high_us: float
    spreads: dict[str, float]


class LanguageStep:
    """A language model's step, priced once and walked block by block: for searches, scores and questions."""

    def __init__(self, c: LanguageConfig, platform: Platform) -> None:
        self.c, self.platform = c, platform
        self.walk = BlockWalk(schedule(c, BLOCKS), platform)

    def step_us(self) -> float:
        return self.walk.step_us()

    @property
    def dynamic_j(self) -> float | None:
        """The energy of all ranks' kernels beyond idle power; None where that is not known."""
        found = self.walk.priced.dynamic_j
        return None if found is None else found * self.c.ranks / self.c.layout.pipeline

    def answer(self, *, known_source: bool = False) -> Quick:
        """The step with its interval; ``known_source``: other steps of this machine set its constants."""
        names = self.walk.names()
        asked = [Question(slow=name) for name in names] + [Question(host=1 + HOST_SPREAD)]
        step_us, *slow = self.walk.steps_us([AS_PRICED, *asked]).tolist()
        spreads = {n: abs(us / step_us - 1) for n, us in zip((*names, HOST), slow, strict=True)}
        factor = interval_factor(self.c, self.platform, spreads.values(), known_source=known_source)
        return Quick(step_us, step_us / factor, step_us * factor, spreads)

    def sensitivities(self, step_us: float) -> tuple[Sensitivity, ...]:
        """What each category, axis and the host mean for the step that takes ``step_us``."""
        names = self.walk.names()
        axes = [name for name in names if name in AXES]
        free = [Question({name: 0.0}) for name in names] + [Question(host=0.0)]
        free.append(Question(dict.fromkeys(axes, 0.0)))
        slow = [Question(slow=name) for name in names] + [Question(host=1 + HOST_SPREAD)]
        base, *found = self.walk.steps_us([AS_PRICED, *free, *slow]).tolist()
        shares = [us / base for us in found]
        n = len(names) + 1
        made = [
            Sensitivity(name, step_us * min(shares[i], 1.0), abs(shares[n + 1 + i] - 1))
            for i, name in enumerate((*names, HOST))
        ]
        made.append(Sensitivity(COMMUNICATION, step_us * min(shares[n], 1.0), 0.0))
        return tuple(sorted(made, key=lambda s: s.if_free_us))

    def shares(self, step_us: float) -> dict[str, float]:
        """Where the step goes, the mean over stages: compute by category, communication as far as compute
        cannot cover it, and other waiting."""
        whole = step_us * self.c.layout.pipeline
        spent = {name: us / whole for name, us in self.walk.spent_us().items()}
        compute = {name: share for name, share in spent.items() if name not in AXES}
        left = max(0.0, 1.0 - sum(compute.values()))
        exposed = min(left, sum(share for name, share in spent.items() if name in AXES))
        return {
            name: s for name, s in (*compute.items(), (EXPOSED, exposed), (WAITING, left - exposed)) if s > 0
        }

    def naive_us(self) -> float:
        """The stages' kernels or collectives, one stream each, without any waiting; the mean over stages."""
        spent = self.walk.spent_us()
        communication = sum(us for name, us in spent.items() if name in AXES)
        return max(communication, sum(spent.values()) - communication) / self.c.layout.pipeline

    def over_nodes(self) -> dict[str, int]:
        """By axis of communication: over how many nodes its groups lie."""
        node = self.platform.spec.gpus_per_node
        programs = self.walk.priced.job.programs
        items = [op.collective for program in programs for op in program.ops if op.collective]
        return {axis_of(item): len({rank // node for rank in item.spans}) for item in items}


def quick(c: LanguageConfig, platform: Platform) -> Quick:
    """The step without a timeline: for searches and scores over thousands of configurations."""
    return LanguageStep(c, platform).answer()


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
