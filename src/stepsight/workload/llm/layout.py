"""How a language model is spread over ranks: the axes of parallelism and the order of ranks on nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

AXES = ("tensor", "context", "data", "pipeline")
"""The axes of a job, innermost first as Megatron numbers ranks. Expert groups lie inside tensor, context
and data."""
SCHEDULES = ("1f1b", "afab", "interleaved", "zero_bubble")
CONTEXT_KINDS = ("ring", "all_gather", "all_to_all")
DISPATCH = ("each", "once")
EXPERT_OVERLAP = ("none", "experts", "all")


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the parallel groups.

    ``data`` counts replicas of the batch; ``zero`` says what is sharded over them: 1 optimizer state, 2 also
    gradients, 3 (``fsdp``) also parameters, in groups of ``shard_group`` ranks (zero: all of ``data``), with
    replicas of the groups (hybrid sharding). ``reshard``: ZeRO-3 gathers parameters again for the backward
    pass. ``prefetch``: gathering parameters overlaps with compute: ZeRO-3's of the next layers, ZeRO-1's and
    2's of the last update with the first forward pass; else compute waits for them.
    Experts are spread over ``expert`` ranks; ``expert_dispatch``: a token is sent to ``each`` of its experts,
    or ``once`` to a node or rank with several; ``expert_overlap``: all_to_all overlaps with the GEMMs of
    ``experts`` (Megatron) or with ``all`` that another micro-batch computes (DeepSeek's DualPipe).
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
    expert: int = 1
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
        copies = self.tensor * self.context * self.data // self.expert
        return self.sharded_over if self.expert == 1 else min(copies, self.sharded_over)

    @property
    def chunks(self) -> int:
        """Pieces of the model one after the other: stages times virtual stages."""
        return self.pipeline * self.virtual_stages

    def size(self, axis: str) -> int:
        return {"tensor": self.tensor, "context": self.context, "data": self.data, "pipeline": self.pipeline}[
            axis
        ]

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
        """The ranks that share out the experts: neighbours along tensor, context and data."""
        return self.group("tensor", "context", "data", stage=stage)[: self.expert]

    def expert_replicas(self, stage: int = 0) -> tuple[int, ...]:
        """The ranks that hold the same experts."""
        return self.group("tensor", "context", "data", stage=stage)[:: self.expert]
