"""The all_to_all of a DLRM: pooled embeddings to the ranks that own the samples, and back.

Started after the lookup and awaited where the interaction reads it, so that the bottom
MLP runs under it; the exchange of gradients runs under the bottom MLP's backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.sharding.plan import COLUMN_WISE, DATA_PARALLEL, Plan, Shard
from stepsight.workload.dlrm_config import DlrmConfig
from stepsight.workload.embeddings import INDEX_BYTES, replicated, sent_widths
from stepsight.workload.pointwise import add
from stepsight.workload.program import COMM, COMPUTE, Call, Collective, Kernel, Wait
from stepsight.workload.tape import Tape
from stepsight.workload.tensor import Tensor
from stepsight.workload.views import cat, clone, concatenated, given, split, view


def send_bytes(config: DlrmConfig, plan: Plan) -> FloatArray:
    """Bytes of pooled embeddings from each rank (row) to each (column): whole tables, own samples."""
    row = np.asarray(sent_widths(plan, config.tables), dtype=np.float64) * config.batch_per_rank * 4
    return np.repeat(row[:, None], config.ranks, axis=1)


def alltoall(config: DlrmConfig, plan: Plan, *, backward: bool) -> Collective:
    """The exchange of pooled embeddings, or of their gradients."""
    sent = send_bytes(config, plan)
    if backward:
        sent = np.ascontiguousarray(sent.T)
    return _exchange(sent, "gradients" if backward else "pooled")


def _exchange(sent: FloatArray, name: str, dtype: str = "fp32") -> Collective:
    kind = "all_to_all" if np.ptp(sent) == 0 else "all_to_allv"
    largest = float(max(sent.sum(axis=1).max(), sent.sum(axis=0).max()))
    return Collective(kind, largest, dtype=dtype, send_bytes=sent, name=name)


def alltoall_calls(config: DlrmConfig, *, backward: bool) -> list[Call]:
    """The exchange as each rank calls it: the values it receives and the values it sends."""
    widths = sent_widths(config.plan, config.tables)
    others = (config.batch_per_rank * sum(widths),)
    calls = []
    for width in widths:
        own = (config.batch * width,)
        calls.append(Call("c10d::alltoall_base_", (own, others) if backward else (others, own)))
    return calls


def exchange_start(tape: Tape, config: DlrmConfig, plan: Plan, pooled: Tensor) -> tuple[Tensor, int]:
    """Starts the all_to_all; its gradient waits for the exchange of gradients."""
    with tape.op("All2All_Pooled_Req", (pooled,)):
        received = Tensor.new((config.batch_per_rank * sum(sent_widths(plan, config.tables)),))
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
    widths = sent_widths(plan, config.tables)
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


def whole_tables(tape: Tape, config: DlrmConfig, pooled: Tensor) -> dict[str, Tensor]:
    """One tensor per table (samples × dim) out of the side-by-side shards of all ranks."""
    shards = _side_by_side(config.plan)
    features = {table.name: table.features for table in config.tables}
    pieces = split(tape, pooled, [shard.width * features[shard.table] for shard in shards], 1)
    of_table: dict[str, list[Tensor]] = {}
    for shard, piece in zip(shards, pieces, strict=True):
        of_table.setdefault(shard.table, []).append(piece)
    kind = {shard.table: shard.kind for shard in shards}
    return {name: _whole(tape, kind[name], parts) for name, parts in of_table.items()}


def _side_by_side(plan: Plan) -> list[Shard]:
    """Shards in the order of their columns: rank after rank, then what every rank holds."""
    sent = [s for rank in range(plan.ranks) for s in plan.on_rank(rank) if s.kind != DATA_PARALLEL]
    return sent + replicated(plan)


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


def distribute_inputs(tape: Tape, config: DlrmConfig) -> None:
    """Each rank has read its own samples: their indices go to the ranks that hold the tables.

    Lengths first; the host reads how much will come (and so waits for the device), then the
    indices follow and are put in table order (TorchRec's input distribution).
    """
    tables = {table.name: table for table in config.tables}
    held = [[s for s in config.plan.on_rank(r) if s.kind != DATA_PARALLEL] for r in range(config.ranks)]
    bags = np.array([sum(tables[s.table].features for s in own) for own in held], dtype=np.float64)
    lookups = np.array(
        [sum(tables[s.table].lookups * s.height / tables[s.table].rows for s in own) for own in held]
    )
    local = config.batch_per_rank * INDEX_BYTES
    for name, per_sample in (("lengths", bags), ("indices", lookups)):
        with tape.op("c10d::alltoall_base_"):
            sent = np.repeat(per_sample[None, :] * local, config.ranks, axis=0)
            started = tape.communicate(_exchange(sent, name, "int64"), Wait(COMM, COMPUTE))
        if name == "lengths":
            with tape.op("aten::to"):
                tape.wait(Wait(COMPUTE, started))
                tape.launch(Kernel.of("copy_d2h", "int64", name="splits", bytes=INDEX_BYTES * config.ranks))
                tape.block_host()
    moved = float(config.batch * lookups.mean())
    with tape.op("fbgemm::permute_2D_sparse_data"):
        tape.wait(Wait(COMPUTE, started))
        size = INDEX_BYTES * moved
        tape.launch(
            Kernel.of(
                "elementwise", "int64", name="permute", elements=moved, read_bytes=size, write_bytes=size
            )
        )
