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

AXES = (
    "tensor", "context", "expert", "expert tensor", "data", "shard", "copies", "expert data", "world",
    PIPELINE,
)  # fmt: skip
"""Axes of parallelism by the names of their groups."""
METHOD_SPREAD: Mapping[str, float] = {
    "megatron": 0.035, "megatron-deepspeed": 0.115, "llm-foundry": 0.115, "internevo": 0.115,
    "scaling": 0.115, "nanotron": 0.115, "torchtitan": 0.115, "deepspeed": 0.115, "eager": 0.115,
}  # fmt: skip
"""By framework: the spread that is left when every kernel and collective is as far off as its own says.
Chosen so that about 90 % of the rows of five sources of Megatron, and of nine of the others, lie inside,
sources weighing equally; with a source left out 87 to 100 % of its rows do, of two with 5 and 14 rows 60 and
71 %."""
UNKNOWN_METHOD = 0.35
"""The same of frameworks and hybrid models that nothing was chosen on, as JAX's 15 rows have it."""
EXPERTS_SPREAD = 0.19
"""What mixtures of experts add: routing, and launches of many small kernels."""
INTERVAL_SIGMAS = 1.645
"""low_us to high_us is meant to hold 90 % of measurements."""
HOST_SPREAD = 0.12
"""Host work of a framework on another machine of the same era."""


BLOCKS, MOST_BLOCKS = 4, 32
"""Micro-batches of a pipeline's steady part that are walked at first, and at most; twice as many each time
that they do not repeat and the step still changes by more than `SAME_STEP`."""
SAME_STEP = 2e-3
MOST_EVENTS = 10_000
"""A longer schedule is not made longer still."""


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
        blocks, before = BLOCKS, 0.0
        while True:
            listed = schedule(c, blocks)
            self.walk = BlockWalk(listed, platform)
            if self.walk.even or blocks >= MOST_BLOCKS or listed.events > MOST_EVENTS:
                break
            step_us = self.walk.step_us()
            if abs(step_us - before) <= SAME_STEP * step_us:
                break
            blocks, before = 2 * blocks, step_us

    def step_us(self) -> float:
        return self.walk.step_us()

    @property
    def dynamic_j(self) -> float | None:
        """The energy of all ranks' kernels beyond idle power; None where that is not known."""
        found = self.walk.priced.dynamic_j
        return None if found is None else found * self.c.ranks / self.c.layout.pipeline

    def answer(self) -> Quick:
        """The step with its interval."""
        names = self.walk.names()
        asked = [Question(slow=name) for name in names] + [Question(host=1 + HOST_SPREAD)]
        step_us, *slow = self.walk.steps_us([AS_PRICED, *asked]).tolist()
        spreads = {n: abs(us / step_us - 1) for n, us in zip((*names, HOST), slow, strict=True)}
        factor = interval_factor(self.c, spreads.values())
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


def interval_factor(c: LanguageConfig, spreads: Iterable[float]) -> float:
    """How far the 90 % interval reaches each way, from the spreads of kernels, collectives and the host."""
    method = UNKNOWN_METHOD if c.model.pattern else METHOD_SPREAD.get(c.framework.name, UNKNOWN_METHOD)
    experts = EXPERTS_SPREAD if c.model.experts else 0.0
    return math.exp(INTERVAL_SIGMAS * math.hypot(method, experts, *spreads))
