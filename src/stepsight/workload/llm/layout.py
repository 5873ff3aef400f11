"""How a language model is spread over ranks: the axes of parallelism and the order of ranks on nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stepsight.workload.fields import Fields
from stepsight.workload.llm.model import LanguageModel
from stepsight.workload.llm.recipe import Framework, Recipe

AXES = ("tensor", "context", "data", "pipeline")
"""The axes of a job, innermost first as Megatron numbers ranks. Expert groups lie inside tensor, context
and data."""
SCHEDULES = ("1f1b", "afab", "interleaved", "zero_bubble")
CONTEXT_KINDS = ("ring", "all_gather", "all_to_all")
DISPATCH = ("each", "once")
EXPERT_OVERLAP = ("none", "experts", "all")
DEFAULT_BATCH = 1
"""Sequences per replica where a description states no batch; answers say that it was assumed."""
FILLED_PIPELINE = 4
"""Micro-batches for each stage of a pipeline, from which its bubble is small (GPipe, Huang et al. 2019,
section 2.3)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the parallel groups.

    ``data`` counts replicas of the batch; ``zero`` says what is sharded over them: 1 optimizer state, 2 also
    gradients, 3 (``fsdp``) also parameters, in groups of ``shard_group`` ranks (zero: all of ``data``), with
    replicas of the groups (hybrid sharding). ``reshard``: ZeRO-3 gathers parameters again for the backward
    pass. ``prefetch``: gathering parameters overlaps with compute: ZeRO-3's of the next layers, ZeRO-1's and
    2's of the last update with the first forward pass; else compute waits for them.
    Experts are spread over ``expert`` ranks, each cut over ``expert_tensor`` neighbours, which gather their
    tokens and sum their results; ``expert_dispatch``: a token is sent to ``each`` of its experts,
    or ``once`` to a node or rank with several; ``expert_overlap``: all_to_all overlaps with the GEMMs of
    ``experts`` (Megatron) or with ``all`` that another micro-batch computes (DeepSeek's DualPipe).
    ``context_balanced``: every rank of a split sequence has an early and a late part of it, so that all look
    at as many pairs; without it the last rank looks at nearly twice the mean.
    ``virtual_stages``: pieces of the model on each rank of an interleaved pipeline. ``order`` lists the axes,
    innermost (neighbouring ranks) first.
    """

    data: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    async_tensor: bool = False
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    context: int = 1
    context_kind: str = "ring"
    context_balanced: bool = True
    expert: int = 1
    expert_tensor: int = 1
    expert_dispatch: str = "each"
    expert_overlap: str = "none"
    zero: int = 0
    shard_group: int = 0
    reshard: bool = True
    prefetch: bool = True
    overlap_gradients: bool = True
    bucket_mb: float = 25.0
    states_buckets: bool = field(default=False, compare=False)
    micro_batches: int = 1
    order: tuple[str, ...] = AXES

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def reduces_each_micro_batch(self) -> bool:
        """A rank that keeps only its share of the gradients cannot add up whole ones: every micro-batch's are
        reduced (ZeRO-2 and 3)."""
        return self.zero >= 2

    @property
    def unpaired(self) -> float:
        """Micro-batches that no other one runs alongside while a pipeline fills, and again while it
        drains."""
        return min(self.pipeline / self.virtual_stages, self.micro_batches)

    @property
    def gathers_updated(self) -> bool:
        """ZeRO-1 and 2: every rank updates its share of the parameters, and all need all of them."""
        return self.zero in (1, 2) and self.sharded_over > 1

    @property
    def sharded_over(self) -> int:
        """Ranks over which ZeRO shards: data and context replicas of one stage."""
        return self.shard_group or self.data * self.context

    @property
    def experts_shared_over(self) -> int:
        """The same for experts: with expert parallelism, the ranks that hold the same ones."""
        copies = self.tensor * self.context * self.data // (self.expert * self.expert_tensor)
        return self.sharded_over if self.expert == 1 else min(copies, self.sharded_over)

    def ranks_per_head(self, heads: int) -> int:
        """Ranks of a context group that compute the same heads, where ranks exchange heads for parts of the
        sequence and the heads cannot be spread evenly: each then keeps its part of a head's values (XTuner's
        inner groups)."""
        own = max(1, heads // self.tensor)
        return self.context // math.gcd(own, self.context) if self.context_kind == "all_to_all" else 1

    @property
    def chunks(self) -> int:
        """Pieces of the model one after the other: stages times virtual stages."""
        return self.pipeline * self.virtual_stages

    def size(self, axis: str) -> int:
        return int(getattr(self, axis))

    def stride(self, axis: str) -> int:
        """Ranks between two neighbours on an axis."""
        step = 1
        for name in self.order:
            if name == axis:
                return step
            step *= self.size(name)
        raise KeyError(axis)

    def group(self, *axes: str, stage: int = 0) -> tuple[int, ...]:
        """The ranks of the group that holds the first rank of a stage, along these axes together."""
        ranks = [stage * self.stride("pipeline")]
        for axis in sorted(axes, key=self.order.index):
            ranks = [r + i * self.stride(axis) for i in range(self.size(axis)) for r in ranks]
        return tuple(ranks)

    def replicas(self, stage: int = 0) -> tuple[int, ...]:
        """The ranks that hold the same parameters of a stage."""
        return self.group("context", "data", stage=stage)

    def shard(self, stage: int = 0) -> tuple[int, ...]:
        """Those of the replicas among which ZeRO shares out: neighbours."""
        return self.replicas(stage)[: self.sharded_over]

    def shard_copies(self, stage: int = 0) -> tuple[int, ...]:
        """One rank of each sharding group: those that hold the same shard."""
        return self.replicas(stage)[:: self.sharded_over]

    def experts(self, stage: int = 0) -> tuple[int, ...]:
        """The ranks that share out the experts: neighbours along tensor, context and data; one of each group
        that an expert is cut over."""
        ranks = self.group("tensor", "context", "data", stage=stage)
        return ranks[: self.expert * self.expert_tensor : self.expert_tensor]

    def expert_parts(self) -> tuple[int, ...]:
        """The ranks that an expert is cut over."""
        return self.group("tensor")[: self.expert_tensor]

    def expert_replicas(self, stage: int = 0) -> tuple[int, ...]:
        """The ranks that hold the same experts."""
        step = self.expert * self.expert_tensor
        return self.group("tensor", "context", "data", stage=stage)[::step]


def read_layout(
    fields: Fields,
    parallel: Fields,
    recipe: Recipe,
    framework: Framework,
    model: LanguageModel,
    *,
    half: bool,
) -> tuple[Layout, int]:
    """The axes, and the batch of one replica."""
    tensor, pipeline = parallel.integer("tensor", 1), parallel.integer("pipeline", 1)
    context = parallel.integer("context", 1)
    others = tensor * pipeline * context
    data = _data(parallel, others)
    batch = _batch(fields, parallel, data, pipeline)
    micro = parallel.integer("micro_batch", batch if pipeline == 1 else 1)
    if batch % micro:
        raise parallel.fail(
            "micro_batch",
            f"{micro} does not divide the {batch} sequences of a replica",
            "use a divisor of global_batch / data",
        )
    zero = _zero(parallel, data * context, pipeline)
    schedule, virtual = _schedule(parallel, recipe, model, pipeline, batch // micro)
    several = parallel.has("sequence_parallel") or tensor > 1
    gradient_bytes = 4 if framework.gradients == "fp32" or not half else 2
    known = {
        "data": data,
        "tensor": tensor,
        "sequence_parallel": parallel.flag("sequence_parallel", False) and several,
        "async_tensor": parallel.flag("async_tensor", False) and (parallel.has("async_tensor") or tensor > 1),
        "pipeline": pipeline,
        "schedule": schedule,
        "virtual_stages": virtual,
        "context": context,
        "expert_overlap": _expert_overlap(parallel, batch // micro),
        "zero": zero,
        "prefetch": _prefetch(parallel, zero, framework),
        "bucket_mb": _bucket_mb(parallel, recipe, data * context, gradient_bytes),
        "states_buckets": parallel.has("bucket_mb"),
        "micro_batches": batch // micro,
        "order": _order(parallel),
    }
    layout = parallel.record(Layout, known, {"context_kind": CONTEXT_KINDS, "expert_dispatch": DISPATCH})
    return layout, batch


def _data(parallel: Fields, others: int) -> int:
    """``data`` as given, or what the other axes leave of ``ranks``."""
    parallel.know("ranks")
    if not parallel.has("ranks"):
        return parallel.integer("data", 1)
    ranks, axes = parallel.integer("ranks"), "tensor × context × pipeline"
    if ranks % others:
        raise parallel.fail(
            "ranks", f"{ranks} ranks is not a multiple of {axes} = {others}", f"use a multiple of {others}"
        )
    data = ranks // others
    if parallel.integer("data", data) != data:
        raise parallel.fail(
            "data", f"data × {axes} is not the {ranks} of ranks", "give one of data and ranks"
        )
    return data


def _schedule(
    parallel: Fields, recipe: Recipe, model: LanguageModel, pipeline: int, micro_batches: int
) -> tuple[str, int]:
    """The order of passes and the pieces of each stage, as stated or as the recipe has them."""
    fixed = parallel.has("schedule") or "schedule" in recipe.parallel or model.encoder_layers > 0
    usual = 1 if fixed else recipe.virtual_stages(model.layers, pipeline, micro_batches)
    virtual = parallel.integer("virtual_stages", usual)
    plain = "interleaved" if virtual > 1 else "1f1b"
    stated = parallel.choice("schedule", SCHEDULES, plain)
    return (stated if parallel.has("schedule") or (pipeline > 1 and virtual == 1) else plain), virtual


def _zero(parallel: Fields, replicas: int, pipeline: int) -> int:
    """The stage of ZeRO; one replica has nothing to share out. A recipe's ZeRO-3 does not go with a
    pipeline: there it shares out the optimizer state."""
    zero = parallel.anything("zero", 0)
    zero = 3 if zero == "fsdp" else zero
    if isinstance(zero, bool) or zero not in (0, 1, 2, 3):
        raise parallel.fail("zero", f"unknown {zero!r}", 'one of 0, 1, 2, 3 or "fsdp" (the same as 3)')
    if replicas == 1:
        return 0
    return int(zero) if parallel.has("zero") or pipeline == 1 else min(int(zero), 1)


def _prefetch(parallel: Fields, zero: int, framework: Framework) -> bool:
    """Whether gathering parameters overlaps with compute: ZeRO-3's always does unless stated otherwise."""
    if parallel.has("prefetch") or zero == 1:
        return parallel.flag("prefetch", False)
    parallel.flag("prefetch", False)
    return zero == 3 or (zero == 2 and not framework.gathers_late)


def _bucket_mb(parallel: Fields, recipe: Recipe, replicas: int, gradient_bytes: int) -> float:
    usual = recipe.bucket_mb(replicas, gradient_bytes)
    stated = parallel.number("bucket_mb", usual, least=0.001)
    return stated if parallel.has("bucket_mb") else usual


def _expert_overlap(parallel: Fields, micro_batches: int) -> str:
    """What exchanges of tokens run alongside; true: all there is. A recipe's "all" needs experts on several
    ranks and another micro-batch."""
    given = parallel.anything("expert_overlap", "none")
    if isinstance(given, bool):
        return "all" if given else "none"
    found = parallel.choice("expert_overlap", EXPERT_OVERLAP, "none")
    usable = parallel.integer("expert", 1) > 1 and (micro_batches > 1 or found != "all")
    return found if usable or parallel.has("expert_overlap") else "none"


def _batch(fields: Fields, parallel: Fields, data: int, pipeline: int) -> int:
    fields.know("global_batch", "batch_per_rank")
    if not fields.has("global_batch") and not fields.has("batch_per_rank"):
        filled = 1 if pipeline == 1 else FILLED_PIPELINE * pipeline
        return parallel.integer("micro_batch", DEFAULT_BATCH) * filled
    if not fields.has("global_batch"):
        return fields.integer("batch_per_rank", DEFAULT_BATCH)
    if fields.has("batch_per_rank"):
        raise fields.fail("batch_per_rank", "given together with global_batch", "give one of the two")
    batch = fields.integer("global_batch")
    if batch % data:
        raise fields.fail("global_batch", f"{batch} is not a multiple of data = {data}", "use a multiple")
    return batch // data


def _order(parallel: Fields) -> tuple[str, ...]:
    given = parallel.anything("order", list(AXES))
    if not isinstance(given, list) or sorted(map(str, given)) != sorted(AXES):
        raise parallel.fail("order", f"must list {', '.join(AXES)} once each, innermost first", "correct it")
    return tuple(given)
