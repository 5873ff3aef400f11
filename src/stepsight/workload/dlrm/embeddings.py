"""The sharded embedding part of a DLRM: what each rank looks up and updates.

Each rank looks up its own tables (or parts of tables) for the whole batch; the backward
pass updates the rows in place (a fused sparse update).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.program.job import COMM, COMPUTE, Call, Collective, Kernel, Op, Wait
from stepsight.tables.lookup import EMBEDDING_BAG, Lookup, TableLookup
from stepsight.tables.plan import DATA_PARALLEL, Plan, Shard
from stepsight.tables.table import Table
from stepsight.workload.dlrm.config import TORCHREC_STACK, DlrmConfig
from stepsight.workload.operators.tape import EVALUATE, Grads, Tape
from stepsight.workload.operators.tensor import Tensor

LOOKUP = "LookupFunction"
LAUNCHES_PER_TABLE = 2
"""Kernels of ``nn.EmbeddingBag`` for one table: the lookup, and what clears or counts its bags (ATen)."""
INDEX_BYTES = 8
"""int64 indices and offsets, torch's default."""


@dataclass(frozen=True, slots=True)
class PlanOps:
    """Where in every rank's program the ops stand that follow the plan; None where there is none."""

    copy_indices: int | None
    copy_offsets: int | None
    lookup_forward: int
    lookup_backward: int
    alltoall_forward: int | None
    alltoall_backward: int | None


def sent_widths(plan: Plan, tables: Sequence[Table]) -> list[int]:
    """Pooled columns that each rank sends, all its shards together.

    Data-parallel tables are looked up by every rank for its own samples and sent nowhere.
    """
    features = {table.name: table.features for table in tables}
    widths = [0] * plan.ranks
    for shard in plan.shards:
        if shard.kind != DATA_PARALLEL:
            widths[shard.rank] += shard.width * features[shard.table]
    return widths


def replicated(plan: Plan) -> list[Shard]:
    """The data-parallel tables, as every rank holds them."""
    return [shard for shard in plan.on_rank(0) if shard.kind == DATA_PARALLEL]


def rank_lookup(config: DlrmConfig, plan: Plan, rank: int, *, fused: bool) -> Lookup:
    """What one rank looks up in a step."""
    parts = [_part(config, config.table_of_name[shard.table], shard) for shard in plan.on_rank(rank)]
    operator = config.cpu_lookup if config.cpu_lookup != EMBEDDING_BAG else ""
    return Lookup(
        tuple(parts), config.sparse_optimizer, fused, update=config.sparse_update, operator=operator
    )


def _part(config: DlrmConfig, table: Table, shard: Shard) -> TableLookup:
    batch = config.batch_per_rank if shard.kind == DATA_PARALLEL else config.batch
    return TableLookup(
        rows=shard.height,
        dim=shard.width,
        batch=batch * table.features,
        pooling=table.pooling * shard.height / table.rows,
        indices=table.indices if shard.height == table.rows else table.indices.part_of(table.rows),
        dtype=table.dtype,
        weighted=table.weighted,
        bag_spread=table.bag_spread,
        placement=table.placement,
        cache_share=table.cache_share,
    )


def index_copies(config: DlrmConfig, lookup: Lookup) -> tuple[Op, Op]:
    """Indices and offsets to the device: of the rank's tables, or (``input_dist``) of its samples."""
    indices = sum(part.index_words for part in lookup.tables)
    offsets = sum(part.batch for part in lookup.tables) + 1
    if config.input_dist:
        indices = config.batch_per_rank * sum(table.index_words for table in config.tables)
        offsets = config.batch_per_rank * sum(table.features for table in config.tables) + 1
    stream = copy_stream(config)
    return (
        copy_to_device("indices", round(indices), stream=stream),
        copy_to_device("offsets", offsets, stream=stream),
    )


def copy_stream(config: DlrmConfig) -> str:
    """Where a batch comes in: TorchRec's pipeline copies the next but one on a stream of its own."""
    return "memcpy" if config.stack == TORCHREC_STACK else COMPUTE


def copy_to_device(label: str, elements: int, bytes_each: int = INDEX_BYTES, *, stream: str = COMPUTE) -> Op:
    dtype = "int64" if bytes_each == INDEX_BYTES else "fp32"
    kernel = Kernel.of("copy_h2d", dtype, operator=label, stream=stream, bytes=elements * bytes_each)
    return Op(
        "aten::to",
        (kernel,),
        label=label,
        shapes=((elements,),),
        calls=(Call("aten::_to_copy", ((elements,),)),),
    )


def lookup_ops(config: DlrmConfig, lookup: Lookup) -> tuple[Op, Op]:
    """A rank's lookup and its backward with the row update, as host operators."""
    name = EVALUATE + f"{LOOKUP}Backward"
    forward = Kernel("embedding", dtype="fp32", operator="lookup", lookup=lookup)
    backward = Kernel("embedding_backward", dtype="fp32", operator="lookup_backward", lookup=lookup)
    if lookup.fused:
        return (
            Op(LOOKUP, (forward,), label="embedding"),
            Op(name, (backward,), phase="backward", label="embedding"),
        )
    pooled = tuple((config.batch, part.dim) for part in lookup.tables)
    width = sum(part.dim for part in lookup.tables)
    join = Kernel.of(
        "concat",
        read_bytes=4 * config.batch * width,
        write_bytes=4 * config.batch * width,
        inputs=len(pooled),
    )
    calls = tuple(
        Call(
            "aten::_embedding_bag_forward_only",
            ((part.rows, part.dim), (round(part.lookups),), (part.batch + 1,)),
        )
        for part in lookup.tables
    )
    updates = tuple(
        call
        for part in lookup.tables
        for call in (
            Call("aten::mul", ((part.batch, part.dim),)),
            Call("aten::index_select", ((part.batch, part.dim), (round(part.lookups),))),
            Call("aten::scatter_add_", _scatter_shapes(part)),
        )
    )
    joined = (Call("aten::cat", pooled),) if pooled else ()
    return (
        Op(LOOKUP, (forward, join) if pooled else (forward,), label="embedding", calls=calls + joined),
        Op(name, (backward,), phase="backward", label="embedding", calls=updates),
    )


def _scatter_shapes(part: TableLookup) -> tuple[tuple[int, ...], ...]:
    moved = (round(part.lookups), part.dim)
    return (part.rows, part.dim), moved, moved


def lookup(
    tape: Tape, config: DlrmConfig, ops: tuple[Op, Op], widths: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled embeddings: of the sharded tables for the whole batch (and apart from them partial sums for
    the node), of replicated ones for the own part."""
    own = replicated(config.plan)
    out, partial = (Tensor.new((config.batch, width)) for width in widths)
    local = Tensor.new((config.batch_per_rank, sum(shard.width for shard in own)))
    separate = (
        0 if _lookup_of(ops[0]).fused or tape.device != "cuda" else -(-len(config.tables) // config.ranks)
    )
    _call_each(tape, "aten::embedding_bag", separate)
    tape.marks["lookup_forward"] = len(tape.ops)
    with tape.op(LOOKUP):
        tape.adopt(ops[0])

        def rule(*grads: Tensor | None) -> Grads:
            if separate:
                with tape.suspended_op():
                    _call_each(tape, f"{EVALUATE}EmbeddingBagBackward0", separate)
            tape.marks["lookup_backward"] = len(tape.ops)
            tape.adopt(ops[1])
            if own and config.ranks > 1:
                _reduce_replicas(tape, own)
            return (None,)

        tape.record(f"{LOOKUP}Backward", (tape.leaf("tables"),), (out, partial, local), rule)
    return out, partial, local


def _lookup_of(op: Op) -> Lookup:
    lookup = op.kernels[0].lookup
    assert lookup is not None  # made by `lookup_ops`
    return lookup


def _call_each(tape: Tape, name: str, tables: int) -> None:
    """An operator per table, where no kernel fuses them: it clears its bags' bookkeeping and launches; the
    lookups themselves are in the op that follows. As many as the mean rank holds, so that every plan has the
    same program."""
    for _ in range(tables):
        with tape.op(name):
            tape.launch(*[Kernel.of("fill", "int64", bytes=INDEX_BYTES)] * LAUNCHES_PER_TABLE)


def _reduce_replicas(tape: Tape, own: Sequence[Shard]) -> None:
    """Dense gradients of replicated tables are summed over all ranks before their update."""
    size = float(sum(shard.width * shard.height for shard in own))
    with tape.suspended_op():
        with tape.op("c10d::allreduce_"):
            collective = Collective("all_reduce", 4 * size, name="replicated tables")
            started = tape.communicate(collective, Wait(COMM, COMPUTE))
        with tape.op("aten::add_"):
            tape.wait(Wait(COMPUTE, started))
            tape.launch(Kernel.of("optimizer", operator="update", elements=size, read_bytes=8 * size,
                                  write_bytes=4 * size, tensors=len(own)))  # fmt: skip
