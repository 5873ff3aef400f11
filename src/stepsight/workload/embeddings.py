"""The sharded embedding part of a DLRM: lookups, and the all_to_all that carries them.

Each rank looks up its own tables (or parts of tables) for the whole batch; an all_to_all
gives every rank all tables for its own samples. The backward pass sends gradients the
other way and updates the rows in place (a fused sparse update).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import Lookup, TableLookup
from stepsight.sharding.plan import COLUMN_WISE, DATA_PARALLEL, Plan, Shard
from stepsight.sharding.tables import Table
from stepsight.workload.dlrm_config import DlrmConfig
from stepsight.workload.pointwise import add
from stepsight.workload.program import COMM, COMPUTE, Call, Collective, Kernel, Op, Wait
from stepsight.workload.tape import EVALUATE, Tape
from stepsight.workload.tensor import Tensor
from stepsight.workload.views import cat, clone, concatenated, given, split, view

LOOKUP = "LookupFunction"
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


def columns(plan: Plan, tables: Sequence[Table], rank: int) -> list[int]:
    """Pooled output columns of each of a rank's shards, in the order of its lookup."""
    features = {table.name: table.features for table in tables}
    return [shard.width * features[shard.table] for shard in plan.on_rank(rank)]


def rank_lookup(config: DlrmConfig, plan: Plan, rank: int, *, fused: bool) -> Lookup:
    """What one rank looks up in a step."""
    tables = {table.name: table for table in config.tables}
    parts = [_part(config, tables[shard.table], shard) for shard in plan.on_rank(rank)]
    return Lookup(tuple(parts), config.sparse_optimizer, fused)


def _part(config: DlrmConfig, table: Table, shard: Shard) -> TableLookup:
    batch = config.batch_per_rank if shard.kind == DATA_PARALLEL else config.batch
    return TableLookup(
        rows=shard.height,
        dim=shard.width,
        batch=batch * table.features,
        pooling=table.pooling * shard.height / table.rows,
        indices=table.indices or IndexDistribution.uniform(),
        dtype=table.dtype,
    )


def send_bytes(config: DlrmConfig, plan: Plan) -> FloatArray:
    """Bytes of pooled embeddings from each rank (row) to each (column): whole tables, own samples."""
    width = [sum(columns(plan, config.tables, rank)) for rank in range(config.ranks)]
    row = np.asarray(width, dtype=np.float64) * config.batch_per_rank * 4
    return np.repeat(row[:, None], config.ranks, axis=1)


def alltoall(config: DlrmConfig, plan: Plan, *, backward: bool) -> Collective:
    """The exchange of pooled embeddings, or of their gradients."""
    sent = send_bytes(config, plan)
    if backward:
        sent = np.ascontiguousarray(sent.T)
    kind = "all_to_all" if np.ptp(sent) == 0 else "all_to_allv"
    largest = float(max(sent.sum(axis=1).max(), sent.sum(axis=0).max()))
    return Collective(kind, largest, send_bytes=sent, name="gradients" if backward else "pooled")


def index_copies(config: DlrmConfig, lookup: Lookup) -> tuple[Op, Op]:
    """Indices and offsets of a rank's tables to its device."""
    indices = sum(part.lookups for part in lookup.tables)
    offsets = sum(part.batch for part in lookup.tables) + 1
    return copy_to_device("indices", round(indices)), copy_to_device("offsets", offsets)


def copy_to_device(label: str, elements: int, bytes_each: int = INDEX_BYTES) -> Op:
    dtype = "int64" if bytes_each == INDEX_BYTES else "fp32"
    kernel = Kernel.of("copy_h2d", dtype, name=label, bytes=elements * bytes_each)
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
    forward = Kernel("embedding", dtype="fp32", name="lookup", lookup=lookup)
    backward = Kernel("embedding_backward", dtype="fp32", name="lookup_backward", lookup=lookup)
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


def lookup(tape: Tape, config: DlrmConfig, ops: tuple[Op, Op], width: int) -> Tensor:
    """The pooled embeddings of the local tables for the whole batch."""
    out = Tensor.new((config.batch, width))
    tape.marks["lookup_forward"] = len(tape.ops)
    with tape.op(LOOKUP):
        tape.adopt(ops[0])

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            tape.marks["lookup_backward"] = len(tape.ops)
            tape.adopt(ops[1])
            return (None,)

        tape.record(f"{LOOKUP}Backward", (tape.leaf("tables"),), (out,), rule)
    return out


def alltoall_call(config: DlrmConfig, rank: int, *, backward: bool) -> Call:
    """The exchange as one rank calls it: the values it receives and the values it sends."""
    width = sum(columns(config.plan, config.tables, rank))
    everywhere = sum(sum(columns(config.plan, config.tables, r)) for r in range(config.ranks))
    own, others = (config.batch * width,), (config.batch_per_rank * everywhere,)
    return Call("c10d::alltoall_base_", (own, others) if backward else (others, own))


def exchange_start(tape: Tape, config: DlrmConfig, plan: Plan, pooled: Tensor) -> tuple[Tensor, int]:
    """Starts the all_to_all; its gradient waits for the exchange of gradients."""
    with tape.op("All2All_Pooled_Req", (pooled,)):
        received = Tensor.new((_received(config, plan),))
        started = tape.communicate(alltoall(config, plan, backward=False), Wait(COMM, COMPUTE))

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            tape.wait(Wait(COMPUTE, tape.marks["alltoall_backward"]))
            return (Tensor.new(pooled.shape),)

        tape.record("All2All_Pooled_ReqBackward", (pooled,), (received,), rule)
    tape.marks["alltoall_forward"] = started
    return received, started


def exchange_finish(tape: Tape, config: DlrmConfig, plan: Plan, received: Tensor, started: int) -> Tensor:
    """Waits for the all_to_all and lays the tables of all ranks side by side for the own samples."""
    local = config.batch_per_rank
    widths = [sum(columns(plan, config.tables, rank)) for rank in range(config.ranks)]
    with tape.op("All2All_Pooled_Wait", (received,)):
        tape.wait(Wait(COMPUTE, started))
        parts = [Tensor.new((local, width)) for width in widths]
        out = concatenated(tape, parts, 1)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            grad = given(g[0])
            pieces = [grad.alias((local, width), grad.strides) for width in widths]
            flat = [view(tape, p if p.is_contiguous() else clone(tape, p), -1) for p in pieces]
            send = concatenated(tape, flat, 0)
            with tape.suspended_op(), tape.op("c10d::alltoall_base_", (send,)):
                collective = alltoall(config, plan, backward=True)
                tape.marks["alltoall_backward"] = tape.communicate(collective, Wait(COMM, COMPUTE))
            return (Tensor.new(received.shape),)

        tape.record("All2All_Pooled_WaitBackward", (received,), (out,), rule)
    return out


def _received(config: DlrmConfig, plan: Plan) -> int:
    total = sum(sum(columns(plan, config.tables, rank)) for rank in range(config.ranks))
    return total * config.batch_per_rank


def whole_tables(tape: Tape, config: DlrmConfig, plan: Plan, pooled: Tensor) -> list[Tensor]:
    """One tensor per table (samples × dim) out of the side-by-side shards of all ranks."""
    shards = [shard for rank in range(config.ranks) for shard in plan.on_rank(rank)]
    widths = [width for rank in range(config.ranks) for width in columns(plan, config.tables, rank)]
    pieces = split(tape, pooled, widths, 1)
    of_table: dict[str, list[Tensor]] = {}
    for shard, piece in zip(shards, pieces, strict=True):
        of_table.setdefault(shard.table, []).append(piece)
    kind = {shard.table: shard.kind for shard in shards}
    return [_whole(tape, kind[name], parts) for name, parts in of_table.items()]


def shard_tables(plan: Plan) -> list[str]:
    """The tables' names in the order in which `whole_tables` returns them."""
    shards = [shard for rank in range(plan.ranks) for shard in plan.on_rank(rank)]
    return list(dict.fromkeys(shard.table for shard in shards))


def _whole(tape: Tape, kind: str, parts: Sequence[Tensor]) -> Tensor:
    """Column parts stand side by side; row parts are partial sums of the same columns."""
    if len(parts) == 1:
        return parts[0]
    if kind == COLUMN_WISE:
        return cat(tape, parts, 1)
    total = parts[0]
    for part in parts[1:]:
        total = add(tape, total, part)
    return total
