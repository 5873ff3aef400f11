"""A whole step from its passes: the pipeline's walk, gradient reduction after it, and the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepsight.dtypes import dtype_bytes
from stepsight.overheads.frameworks import profile_of
from stepsight.platform.load import Platform
from stepsight.platform.power import NO_DRAW, Draw
from stepsight.prediction.breakdown import IDLE, WAITING
from stepsight.prediction.llm.passes import HOST, Part, PassCache, PassTime, Pricer, Scale
from stepsight.prediction.llm.piece_times import SHARD, Durations, PieceTimes, StageParts, drawn
from stepsight.prediction.llm.pipeline import walk
from stepsight.workload.llm.blocks import gradient_messages, parameter_messages
from stepsight.workload.llm.build import RUNS
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.cut import pieces, tensors_between
from stepsight.workload.llm.schedule import Item
from stepsight.workload.llm.stages import Pieces
from stepsight.workload.llm.update import host_update_us, update_kernels, update_launches

PIPELINE, DATA = "pipeline", "data"
TENSOR_CORE_CATEGORIES = ("gemm", "attention")


@dataclass(frozen=True, slots=True)
class Knobs:
    """Constants that are fitted on whole steps, as factors on what they make: the host's time of a launch,
    the time of products on tensor cores (their sustained clock), and of collectives over nodes."""

    host: float = 1.0
    products: float = 1.0
    network: float = 1.0
    parts: Mapping[str, float] = field(default_factory=dict)
    """By category of kernels and axis of communication."""


AS_SHIPPED = Knobs()


@dataclass(frozen=True, slots=True)
class Composed:
    """The step's time and its stages'."""

    step_us: float
    stages: tuple[StageParts, ...]

    def parts_us(self) -> dict[str, float]:
        """What the devices did, the mean over stages: compute by category, ``exposed AXIS`` communication,
        waiting for other ranks (the bubble) and for the host. The parts add up to the step."""
        total: dict[str, float] = {}
        for stage in self.stages:
            named = {
                **stage.compute,
                **{f"exposed {axis}": us for axis, us in stage.exposed.items()},
                WAITING: stage.bubble_us,
                IDLE: stage.host_bound_us,
            }
            for name, us in named.items():
                total[name] = total.get(name, 0.0) + us / len(self.stages)
        return {name: us for name, us in total.items() if us > 0}


class Composer:
    """Prices a configuration once, and answers for any scale of its parts."""

    def __init__(self, c: LanguageConfig, platform: Platform, known: PassCache | None = None) -> None:
        self.c, self.s = c, c.layout
        self.pricer = Pricer(c, platform, known)
        contention = platform.spec.contention
        self.scale = Scale("", "", contention.compute_under_comm, contention.comm_under_compute)
        maker = Pieces(c, RUNS if self.s.zero == 3 or self._reduces else 1)
        self.works = [maker.work(piece) for piece in pieces(c)]
        split = self.s.schedule == "zero_bubble"
        identical = {id(w): w for w in self.works}
        self._times = {key: PieceTimes(c, w, self.pricer, split=split) for key, w in identical.items()}
        self._transfer = self._transfers()
        self._ends = [self._end_of(stage) for stage in range(self.s.pipeline)]
        draw = self._drawn()
        power = platform.conditions.power
        self.clock = 1.0 if power is None else power.clock(draw)
        self.dynamic_j = (
            None if power is None else power.dynamic_j(draw, self.clock) * c.ranks / self.s.pipeline
        )
        self.scale = replace(self.scale, clock=self.clock)
        self._world = (
            self.pricer.collective("world", "all_reduce", 4.0)
            if c.ranks > 1 and c.training.clipping
            else Part()
        )

    def _drawn(self) -> Draw:
        """What one rank of every stage draws in a step."""
        total = Draw()
        for work in self.works:
            times = self._times[id(work)]
            total = total.plus(drawn((times.forward, times.backward)), self.s.micro_batches)
        for end in self._ends:
            total = total.plus(end.draw)
        return total

    @property
    def _reduces(self) -> bool:
        return self.s.data * self.s.context > 1

    def names(self) -> list[str]:
        """Categories and axes that can be asked about, and the host."""
        names: dict[str, None] = {}
        for times in self._times.values():
            for one in (times.forward, times.backward, *times.runs_forward, *times.runs_backward):
                names.update(dict.fromkeys((*one.compute, *one.waited)))
                for o in one.overlaps:
                    names.update(dict.fromkeys((*o.concurrent, o.axis)))
        for end in self._ends:
            names.update(dict.fromkeys(end.update))
        if self._reduces:
            names[SHARD if self.s.zero else DATA] = None
        if self.s.pipeline > 1:
            names[PIPELINE] = None
        return [*names, HOST]

    def step(
        self,
        asked: str = "",
        how: str = "",
        host_spread: float = 0.2,
        knobs: Knobs = AS_SHIPPED,
    ) -> Composed:
        """The step, with one part free or slower by its spread; ``knobs``: with other constants."""
        scale = replace(self.scale.asking(asked, how), factors=self._factors(knobs))
        host = {"free": 0.0, "slow": 1.0 + host_spread}.get(how, 1.0) if asked == HOST else 1.0
        host *= knobs.host
        durations = {key: times.durations(scale, host) for key, times in self._times.items()}
        s = self.s
        walked_us = self._walked_us([durations[id(w)] for w in self.works], scale)
        stages, ends = [], []
        for stage in range(s.pipeline):
            mine = [durations[id(w)] for w in self.works[stage :: s.pipeline]]
            parts = StageParts()
            for d in mine:
                d.add_to(parts, s.micro_batches)
            behind = self._behind(stage, scale, parts)
            stages.append(parts)
            ends.append(walked_us[stage] + behind)
        last = max(ends)
        update = [self._update(stage, scale, host, parts) for stage, parts in enumerate(stages)]
        world_us = scale.of("world", self._world)
        step_us = last + world_us + max(update)
        for parts in stages:
            if world_us > 0:
                parts.exposed["world"] = parts.exposed.get("world", 0.0) + world_us
                parts.communication["world"] = parts.communication.get("world", 0.0) + world_us
            spent = sum(parts.compute.values()) + sum(parts.exposed.values()) + parts.host_bound_us
            parts.bubble_us = max(0.0, step_us - spent)
        return Composed(step_us, tuple(stages))

    def _walked_us(self, pieces: Sequence[Durations], scale: Scale) -> tuple[float, ...]:
        """When each stage ends its last pass."""
        s = self.s
        transfer = [scale.of(PIPELINE, part) for part in self._transfer]

        def duration(item: Item) -> float:
            return pieces[item.piece].of(item.kind)

        return walk(s.schedule, s.pipeline, s.micro_batches, s.virtual_stages, duration, transfer).end_us

    def _factors(self, knobs: Knobs) -> dict[str, float]:
        """What the knobs mean for categories of kernels and axes of communication."""
        factors = dict.fromkeys(TENSOR_CORE_CATEGORIES, knobs.products) if knobs.products != 1.0 else {}
        factors |= knobs.parts
        if knobs.network != 1.0:
            node = self.pricer.platform.spec.gpus_per_node
            across = [axis for axis, ranks in self.pricer.blocks.spans.items() if ranks[-1] // node > 0]
            across += [PIPELINE] if self.c.ranks > node and self.s.pipeline > 1 else []
            factors |= dict.fromkeys(across, knobs.network)
        return factors

    def _behind(self, stage: int, scale: Scale, parts: StageParts) -> float:
        """Gradient reduction that the last backward pass does not cover, and tied embeddings."""
        exposed = 0.0
        end = self._ends[stage]
        if end.reduction:
            axis = SHARD if self.s.zero else DATA
            compute = comm = 0.0
            for i, run_us in enumerate(end.run_us(scale)):
                took = scale.of(axis, end.reduction[i])
                under = min(took, run_us)
                compute += run_us
                comm = max(comm, compute) + took * self.scale.comm_under_compute ** (
                    0.0 if under < took else 0.5
                )
            total = sum(scale.of(axis, part) for part in end.reduction)
            exposed = max(0.0, comm - compute) if self.s.overlap_gradients else total
            parts.exposed[axis] = parts.exposed.get(axis, 0.0) + exposed
            parts.communication[axis] = parts.communication.get(axis, 0.0) + total
        tied = scale.of(PIPELINE, end.tied)
        if tied:
            parts.exposed[PIPELINE] = parts.exposed.get(PIPELINE, 0.0) + tied
        return exposed + tied

    def _update(self, stage: int, scale: Scale, host: float, parts: StageParts) -> float:
        """Optimizer and the parameters' way back: after it, or what of it the next step's first forward pass
        does not cover."""
        end = self._ends[stage]
        device = 0.0
        for name, part in end.update.items():
            device += scale.of(name, part)
            parts.compute[name] = parts.compute.get(name, 0.0) + scale.of(name, part)
        gather = scale.of(SHARD, end.gather)
        for work in self.works[stage :: self.s.pipeline]:
            waited, took = self._times[id(work)].updated_us(scale)
            gather += waited
            if took:
                parts.communication[SHARD] = parts.communication.get(SHARD, 0.0) + took
        if gather:
            parts.exposed[SHARD] = parts.exposed.get(SHARD, 0.0) + gather
        late = max(0.0, end.host_us * host - device) + end.host_update_us
        late += profile_of(self.c.host_profile).step_us * host
        parts.host_bound_us += late
        return device + late + gather

    def _transfers(self) -> list[Part]:
        """A message from each stage to the next."""
        c, s = self.c, self.s
        if s.pipeline == 1:
            return [Part()]
        bytes_ = float(dtype_bytes(c.training.dtype) * c.tokens * c.model.hidden)
        bytes_ /= s.tensor if s.sequence_parallel else 1
        stride = s.stride("pipeline")
        host = self.pricer.host_us("forward", 1) * c.framework.message_launches
        found = []
        for stage, tensors in enumerate(tensors_between(c)):
            ends = (stage * stride, (stage + 1) % s.pipeline * stride)
            part = self.pricer.collective(f"{PIPELINE} {stage}", "send_recv", tensors * bytes_, spans=ends)
            found.append(Part(part.time_us + host, part.spread_us + 0.2 * host))
        return found

    def _end_of(self, stage: int) -> _End:
        c, s, works = self.c, self.s, self.works[stage :: self.s.pipeline]
        dense, experts = sum(w.parameters for w in works), sum(w.expert_parameters for w in works)
        reduction: list[Part] = []
        first = works[0]
        if self._reduces and not s.reduces_each_micro_batch:
            reduction = [self.pricer.messages(gradient_messages(c, r)) for w in works for r in w.backward]
        update: dict[str, Part] = {}
        draw = Draw()
        launches, layers = 0, sum(run.layers for w in works for run in w.forward)
        if c.training.optimizer != "none":
            updated = dict.fromkeys(update_kernels(c, dense, experts, layers), 1)
            update, draw = self.pricer.kernels(updated), self.pricer.drawn(updated)
            launches = update_launches(layers)
        gather = Part()
        if s.gathers_updated and not s.prefetch and launches:
            gather = self.pricer.messages(parameter_messages(c, dense, experts, layers))
        tied = Part()
        if c.model.tied and s.pipeline > 1 and stage in (0, s.pipeline - 1):
            grad = 4.0 if c.framework.gradients == "fp32" else 2.0
            ends = (0, (s.pipeline - 1) * s.stride("pipeline"))
            tied = self.pricer.collective(
                "tied", "all_reduce", grad * c.padded_vocab / s.tensor * c.model.hidden, spans=ends
            )
        runs = (
            self._times[id(first)].runs_backward
            if len(works) == 1
            else tuple(t for w in works for t in self._times[id(w)].runs_backward)
        )
        node = self.pricer.platform.spec.gpus_per_node
        host_us = self.pricer.host_us("optimizer", launches)
        own_us = host_update_us(c, dense, experts, node)
        return _End(tuple(reduction), runs, update, host_us, gather, tied, own_us, draw)


@dataclass(frozen=True, slots=True)
class _End:
    """What a stage does after its last backward pass."""

    reduction: tuple[Part, ...]
    runs: tuple[PassTime, ...]
    update: Mapping[str, Part]
    host_us: float
    gather: Part
    tied: Part
    host_update_us: float = 0.0
    draw: Draw = NO_DRAW

    def run_us(self, scale: Scale) -> list[float]:
        return [run.device_us(scale) for run in self.runs]
