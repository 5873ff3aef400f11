"""A language model's step: walked, with its interval, and in the figures that people count in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from stepsight.constants import area
from stepsight.hardware.spec import GpuSpec
from stepsight.platform.load import Platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction, explain
from stepsight.prediction.breakdown import (
    EXPOSED,
    HOST,
    WAITING,
    Sensitivity,
    exposed_by_group,
    summarise,
)
from stepsight.prediction.memory import MemoryLine, fit_probability
from stepsight.prediction.throughput import throughput
from stepsight.program.setup import Setup
from stepsight.simulate.blocks import AS_PRICED, PIPELINE, BlockWalk, Question, axis_of
from stepsight.simulate.price import COMMUNICATION, price
from stepsight.simulate.timeline import Timeline, run
from stepsight.workload.llm.build import build, schedule
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.memory import stage_memory
from stepsight.workload.llm.recipe import families, recipe_of
from stepsight.workload.llm.workload import LanguageWorkload
from stepsight.workload.memory import RankMemory

AXES = (
    "tensor", "context", "expert", "expert tensor", "data", "shard", "copies", "expert data", "world",
    PIPELINE,
)  # fmt: skip
"""Axes of parallelism by the names of their groups."""
C = area("language")
METHOD_SPREAD, OF_KERNELS = C.by_name("METHOD_SPREAD"), C.by_name("OF_KERNELS")
BLOCKS, MOST_BLOCKS, MOST_EVENTS = 4, 32, 10_000
"""Of the walk by blocks: micro-batches of a pipeline's steady part that are walked at first, and at most;
twice as many each time that they do not repeat and the step still changes by more than `SAME_STEP`. A longer
schedule is not made longer still."""
WALKED_BLOCKS, MOST_WALKED_BLOCKS, MOST_OPERATORS = 3, 48, 20_000
"""The same of the whole walk."""
SAME_STEP = 2e-3


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
        asked = [Question(slow=name) for name in names] + [Question(host=1 + C.HOST_SPREAD)]
        step_us, *slow = self.walk.steps_us([AS_PRICED, *asked]).tolist()
        spreads = {n: abs(us / step_us - 1) for n, us in zip((*names, HOST), slow, strict=True)}
        factor = interval_factor(self.c, self.platform.spec.gpu, spreads.values())
        return Quick(step_us, step_us / factor, step_us * factor, spreads)

    def sensitivities(self, step_us: float) -> tuple[Sensitivity, ...]:
        """What each category, axis and the host mean for the step that takes ``step_us``."""
        names = self.walk.names()
        axes = [name for name in names if name in AXES]
        free = [Question({name: 0.0}) for name in names] + [Question(host=0.0)]
        free.append(Question(dict.fromkeys(axes, 0.0)))
        slow = [Question(slow=name) for name in names] + [Question(host=1 + C.HOST_SPREAD)]
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


def interval_factor(c: LanguageConfig, gpu: GpuSpec, spreads: Iterable[float]) -> float:
    """How far the 90 % interval reaches each way, from the spreads of kernels, collectives and the host."""
    name = c.framework.name
    known = not c.model.pattern and gpu.vendor == "nvidia"
    method = METHOD_SPREAD.get(name, C.UNKNOWN_METHOD) if known else C.UNKNOWN_METHOD
    share = OF_KERNELS.get(name, 1.0) if known else 1.0
    experts = C.EXPERTS_SPREAD if c.model.experts else 0.0
    return math.exp(INTERVAL_SIGMAS * math.hypot(method, experts, *(share * spread for spread in spreads)))


UNUSED = ("tables", "followed")
"""Fields of a rank's memory that say nothing about a language model."""


@dataclass(frozen=True, slots=True)
class LanguageFigures:
    """A step in the field's words.

    Rates and ``mfu`` are those of `Throughput`; the model's FLOPs are 6 a parameter and token, 4 where it is
    frozen, and attention over the whole sequence; nothing run again counts.
    ``bubble`` is the share of the step in which a stage waits for others, the mean over stages;
    ``exposed_share`` that of communication not covered by compute, by axis of parallelism.
    ``stage_memory_bytes`` is what a rank of each stage holds at its fullest, by part; ``fit_probability`` how
    likely the fullest one fits into its GPU.
    """

    parameters: int
    active_parameters: int
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    bubble: float
    exposed_share: Mapping[str, float]
    micro_batches: int
    stage_memory_bytes: tuple[Mapping[str, float], ...] = ()
    fit_probability: float = 1.0


def figures(c: LanguageConfig, timeline: Timeline, gpu: GpuSpec) -> LanguageFigures:
    """The figures of a walked step."""
    rates = throughput(None, c.ranks, timeline.step_us, LanguageWorkload(c).setup(), gpu)
    held = stage_memory(c)
    parts = [f.name for f in fields(RankMemory) if f.name not in UNUSED]
    axes, waiting = exposed_by_axis(timeline)
    return LanguageFigures(
        parameters=c.model.parameters(),
        active_parameters=c.model.parameters(active=True),
        tokens_per_step=c.tokens_per_step,
        tokens_per_s=rates.tokens_per_s or 0.0,
        tokens_per_s_per_gpu=rates.tokens_per_s_per_gpu or 0.0,
        tflops_per_gpu=rates.tflops_per_gpu,
        mfu=rates.mfu,
        bubble=waiting / timeline.step_us,
        exposed_share={axis: us / timeline.step_us for axis, us in axes.items()},
        micro_batches=c.layout.micro_batches,
        stage_memory_bytes=tuple({name: float(getattr(one, name)) for name in parts} for one in held),
        fit_probability=fit_probability(max(one.total for one in held), gpu.usable_bytes),
    )


def exposed_by_axis(timeline: Timeline) -> tuple[dict[str, float], float]:
    """Exposed communication by axis of parallelism, and waiting for other ranks; µs, the mean over ranks."""
    groups, waiting = exposed_by_group(timeline)
    axes: dict[str, float] = {}
    for group, us in groups.items():
        axis = group if group in AXES else PIPELINE
        axes[axis] = axes.get(axis, 0.0) + us
    return axes, waiting


def parts_us(timeline: Timeline) -> dict[str, float]:
    """Where the step goes, the mean over ranks: compute by category, ``exposed AXIS``, waiting and idle."""
    parts = summarise(timeline)[1]
    parts.pop(EXPOSED, None)
    return parts | {f"exposed {axis}": us for axis, us in exposed_by_axis(timeline)[0].items()}


def predict_language(
    c: LanguageConfig, platform: Platform, memory: MemoryLine | None, setup: Setup | None = None
) -> Prediction:
    """The step of a language model on a platform, explained."""
    timeline = walk_language(c, platform)
    sensitive = LanguageStep(c, platform).sensitivities(timeline.step_us)
    factor = interval_factor(c, platform.spec.gpu, (s.step_spread for s in sensitive))
    scale = c.ranks / timeline.priced.job.ranks
    dynamic_j = timeline.priced.dynamic_j
    timeline = replace(timeline, priced=replace(timeline.priced, dynamic_j=dynamic_j and scale * dynamic_j))
    found = explain(timeline, platform, sensitive=sensitive, interval_factor=factor)
    stride, stages = c.layout.stride("pipeline"), c.layout.pipeline
    ranks = tuple(replace(found.ranks[rank // stride % stages], rank=rank) for rank in range(c.ranks))
    return replace(
        found, workload=c.name, memory=memory, setup=setup, ranks=ranks,
        language=figures(c, timeline, platform.spec.gpu),
        notes=(*left_out(timeline), *c.notes, *same_elsewhere(c), *found.notes),
    )  # fmt: skip


def walk_language(c: LanguageConfig, platform: Platform, *, blocks: int = WALKED_BLOCKS) -> Timeline:
    """The walk of a step; micro-batches that repeat the one before are continued by their period."""
    before = 0.0
    while True:
        job = build(c, blocks)
        found = run(price(job, platform), platform)
        same = abs(found.step_us - before) <= SAME_STEP * found.step_us
        long = sum(map(len, job.programs)) > MOST_OPERATORS
        if found.even or job.whole or same or long or blocks >= MOST_WALKED_BLOCKS:
            return found
        blocks, before = 2 * blocks, found.step_us


def same_elsewhere(c: LanguageConfig) -> tuple[str, ...]:
    """A note where other frameworks of the same defaults launch the very same step."""
    if not c.recipe:
        return ()
    here = recipe_of(c.recipe)
    defaults = (here.training, here.parallel, here.attention_on)
    found = [
        one.family
        for one in families().values()
        if one.family != here.family
        and (one.training, one.parallel, one.attention_on) == defaults
        and build(replace(c, framework=replace(one.framework, gradients=c.framework.gradients))) == build(c)
    ]
    return (f"framework {here.family}: {', '.join(found)} gives the same step here",) if found else ()


def left_out(timeline: Timeline) -> tuple[str, ...]:
    """A note where the timeline leaves out micro-batches; all figures hold them."""
    skipped = timeline.micro_batches_left_out
    if not skipped:
        return ()
    return (
        f"the timeline leaves out {skipped:,} micro-batches that repeat those before; all figures hold them",
    )
