"""The all_to_all of a DLRM: pooled embeddings to the ranks that own the samples, and back.

Started after the lookup and awaited where the interaction reads it, so that the bottom
MLP overlaps with it; the exchange of gradients overlaps with the bottom MLP's backward.

Tables cut by rows inside one node (table-row-wise) are summed before they leave it (`NodeTables`): every rank
of the node looks its rows up for the whole batch, a reduce_scatter inside the node adds the partial sums, and
an all_to_all among the ranks with the same place in their nodes brings every sample home. The backward pass
goes the other way. The compute stream waits for the reduce_scatter before the all_to_all may start
(TorchRec's TwRwPooledEmbeddingDist).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.program.aten.movement import copy_kernel, pointwise_kernel
from stepsight.program.job import COMM, COMPUTE, Call, Collective, Group, Kernel, Op, Wait
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, Plan, Shard
from stepsight.workload.dlrm.config import TORCHREC_STACK, DlrmConfig
from stepsight.workload.dlrm.embeddings import INDEX_BYTES, replicated, sent_widths
from stepsight.workload.operators.pointwise import add
from stepsight.workload.operators.tape import Grads, Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cat, clone, concatenated, split, view

NODE, PEERS = "node", "peers"
"""The groups: the ranks of a node; the ranks with the same place in their nodes."""
NODE_COMM = "comm_node"
"""The stream of collectives inside the node (each process group has its own)."""
SUM, GATHER = "sum_in_node", "gather_in_node"
"""Marks of the two collectives that each rank calls with its own node's bytes."""


def node_groups(ranks: int, size: int) -> dict[str, tuple[Group, ...]]:
    """The ranks of each node of ``size``, and those with the same place in their nodes."""
    nodes = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
    peers = [tuple(range(place, ranks, size)) for place in range(size)]
    return {
        name: tuple(Group(f"{name}{i}", members) for i, members in enumerate(sets))
        for name, sets in ((NODE, nodes), (PEERS, peers))
    }


@dataclass(frozen=True, slots=True)
class NodeTables:
    """The table-row-wise tables of a plan: ``shards`` holds one shard of each, by node."""

    config: DlrmConfig
    per_node: int
    shards: tuple[tuple[Shard, ...], ...]

    @classmethod
    def of(cls, config: DlrmConfig, device: str) -> NodeTables | None:
        """None where the plan has no such table, or nothing sums inside a node (the CPU runtime sends
        row parts as they are)."""
        parts: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
        for shard in config.plan.shards if device == "cuda" and config.ranks > 1 else ():
            if shard.kind == TABLE_ROW_WISE:
                parts.setdefault((shard.table, shard.columns), []).append(shard)
        if not parts:
            return None
        per_node = max(len(shards) for shards in parts.values())
        nodes = config.ranks // per_node
        by_node: list[list[Shard]] = [[] for _ in range(nodes)]
        for shards in parts.values():
            node = shards[0].rank // per_node
            if config.ranks % per_node or any(s.rank // per_node != node for s in shards):
                raise InputError(
                    config.source or "plan",
                    f"table {shards[0].table!r} is table_row_wise over ranks "
                    f"{', '.join(str(s.rank) for s in shards)}, which are no node of {per_node} ranks",
                    "cut it over the ranks of one node, the same number for every such table, "
                    "or call it row_wise",
                )
            by_node[node].append(shards[0])
        return cls(config, per_node, tuple(tuple(shards) for shards in by_node))

    @property
    def widths(self) -> list[int]:
        """Pooled columns that the ranks of each node sum."""
        features = {table.name: table.features for table in self.config.tables}
        return [sum(s.width * features[s.table] for s in shards) for shards in self.shards]

    def width(self, rank: int) -> int:
        return self.widths[rank // self.per_node]

    def inside(self, kind: str, rank: int) -> Collective:
        """The reduce_scatter or all_gather of the node that a rank is in."""
        size = 4.0 * self.config.batch * self.width(rank)
        return Collective(kind, size, group=NODE, stream=NODE_COMM, name="node sums")

    def own_op(self, op: Op, rank: int) -> Op:
        """An op of rank 0's program as another rank calls it."""
        if op.collective is None:
            return op
        return replace(op, collective=self.inside(op.collective.kind, rank))


def without_node_tables(plan: Plan) -> Plan:
    """What is left for the exchange among all ranks."""
    return replace(plan, shards=tuple(s for s in plan.shards if s.kind != TABLE_ROW_WISE))


def sum_inside(tape: Tape, tables: NodeTables, pooled: Tensor) -> Tensor:
    """Partial sums added up over the node: the share of this rank's peers."""
    summed = Tensor.new((pooled.shape[0] // tables.per_node, pooled.shape[1]))
    with tape.op("ReduceScatter_Req", (pooled,)):
        tape.marks[SUM] = tape.communicate(tables.inside("reduce_scatter", 0), Wait(NODE_COMM, COMPUTE))

        def request(grad: Tensor) -> Grads:
            tape.wait(Wait(COMPUTE, tape.marks[GATHER]))
            return (Tensor.new(pooled.shape),)

        under_way = summed.empty_like()
        tape.record("ReduceScatter_ReqBackward", (pooled,), (under_way,), request)
    with tape.op("ReduceScatter_Wait", (under_way,)):
        tape.wait(Wait(COMPUTE, tape.marks[SUM]))

        def wait(grad: Tensor) -> Grads:
            with tape.suspended_op(), tape.op("c10d::_allgather_base_", (summed,)):
                gather = tables.inside("all_gather", 0)
                tape.marks[GATHER] = tape.communicate(gather, Wait(NODE_COMM, COMPUTE))
            return (Tensor.new(under_way.shape),)

        tape.record("ReduceScatter_WaitBackward", (under_way,), (summed,), wait)
    return summed


@dataclass(frozen=True, slots=True)
class PooledExchange:
    """An all_to_all of pooled embeddings: ``widths`` are the columns that each member of the group
    sends to every other one, for the other's samples. ``name`` is how the tape marks it."""

    config: DlrmConfig
    widths: tuple[int, ...]
    name: str = "alltoall"
    group: str = "world"

    @classmethod
    def among_all(cls, config: DlrmConfig, plan: Plan) -> PooledExchange:
        return cls(config, tuple(sent_widths(plan, config.tables)))

    @classmethod
    def among_peers(cls, tables: NodeTables) -> PooledExchange:
        """Of what was summed inside the nodes."""
        return cls(tables.config, tuple(tables.widths), PEERS, PEERS)

    @property
    def forward_mark(self) -> str:
        return f"{self.name}_forward"

    @property
    def backward_mark(self) -> str:
        return f"{self.name}_backward"

    def collective(self, *, backward: bool) -> Collective:
        """The exchange of pooled embeddings, or of their gradients."""
        sent = np.array(self.widths, float) * self.config.batch_per_rank * self.config.exchange_bytes
        return vectors_exchange(sent, self.config.exchange_dtype, backward=backward, group=self.group)

    def calls(self, *, backward: bool) -> list[Call]:
        """The exchange as each member calls it: the values it receives and the values it sends."""
        local, members = self.config.batch_per_rank, len(self.widths)
        others = (local * sum(self.widths),)
        calls = []
        for width in self.widths:
            own = (local * members * width,)
            calls.append(Call("c10d::alltoall_base_", (own, others) if backward else (others, own)))
        return calls

    def start(self, tape: Tape, pooled: Tensor) -> UnderWay:
        """Starts the all_to_all; its gradient waits for the exchange of gradients."""
        copied = self.config.stack == TORCHREC_STACK and tape.device != "cuda"
        with tape.op("All2All_Pooled_Req", (pooled,)):
            self.narrowed(tape, pooled.elements)
            if copied:  # into a buffer that its communication library has registered
                tape.call("aten::copy_", (pooled,), copy_kernel(pooled, pooled))
            received = Tensor.new((self.config.batch_per_rank * sum(self.widths),))
            started = tape.communicate(self.collective(backward=False), Wait(COMM, COMPUTE))

            def rule(grad: Tensor) -> Grads:
                tape.wait(Wait(COMPUTE, tape.marks[self.backward_mark]))
                self.narrowed(tape, pooled.elements)
                if copied:  # the mean over ranks, as a data-parallel gradient
                    tape.call("aten::div_", (pooled,), pointwise_kernel("div_", (pooled,), pooled))
                return (Tensor.new(pooled.shape),)

            tape.record("All2All_Pooled_ReqBackward", (pooled,), (received,), rule)
        tape.marks[self.forward_mark] = started
        return UnderWay(self, received, started)

    def narrowed(self, tape: Tape, elements: int) -> None:
        """To the type that travels, or back from it: a pass over the values (none for fp32)."""
        size = self.config.exchange_bytes
        if size < 4:
            tape.launch(
                Kernel.of("elementwise", self.config.exchange_dtype, operator="quantise", elements=elements,
                          read_bytes=4 * elements, write_bytes=size * elements)
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An exchange that has been started."""

    exchange: PooledExchange
    received: Tensor
    started: int

    def finish(self, tape: Tape) -> Tensor:
        """Waits, and lays what all members sent side by side for the own samples."""
        local, widths = self.exchange.config.batch_per_rank, self.exchange.widths
        with tape.op("All2All_Pooled_Wait", (self.received,)):
            tape.wait(Wait(COMPUTE, self.started))
            self.exchange.narrowed(tape, self.received.elements)
            parts = [Tensor.new((local, width)) for width in widths]
            out = concatenated(tape, parts, 1)

            def rule(grad: Tensor) -> Grads:
                pieces = [grad.alias((local, width), grad.strides) for width in widths]
                flat = [view(tape, p if p.is_contiguous() else clone(tape, p), -1) for p in pieces]
                send = concatenated(tape, flat, 0)
                self.exchange.narrowed(tape, send.elements)
                with tape.suspended_op(), tape.op("c10d::alltoall_base_", (send,)):
                    back = self.exchange.collective(backward=True)
                    tape.marks[self.exchange.backward_mark] = tape.communicate(back, Wait(COMM, COMPUTE))
                return (Tensor.new(self.received.shape),)

            tape.record("All2All_Pooled_WaitBackward", (self.received,), (out,), rule)
        return out


def vectors_exchange(
    sent: FloatArray,
    dtype: str,
    *,
    backward: bool,
    group: str = "world",
    name: str = "pooled",
    kind: str = "",
) -> Collective:
    """The all_to_all in which each member sends this many bytes to every other one, or that of gradients."""
    matrix = np.repeat(sent[:, None], len(sent), axis=1)
    if backward:
        matrix = np.ascontiguousarray(matrix.T)
    return _exchange(matrix, "gradients" if backward else name, dtype, group, kind)


def _exchange(
    sent: FloatArray, name: str, dtype: str = "fp32", group: str = "world", kind: str = ""
) -> Collective:
    kind = kind or ("all_to_all" if np.ptp(sent) == 0 else "all_to_allv")
    largest = float(max(sent.sum(axis=1).max(), sent.sum(axis=0).max()))
    return Collective(kind, largest, group, dtype=dtype, send_bytes=sent, name=name)


@dataclass(slots=True)
class RankWriter:
    """Writes one rank's step, kernel by kernel."""

    config: DlrmConfig
    rank: int
    ops: list[Op] = field(default_factory=list)
    phase: str = "forward"

    def add(
        self, name: str, *kernels: Kernel, collective: Collective | None = None, waits: tuple[Wait, ...] = ()
    ) -> int:
        """One more operator; the index by which later ones wait for it."""
        self.ops.append(Op(name, kernels, collective, waits, phase=self.phase))
        return len(self.ops) - 1

    def gemm(self, operator: str, m: int, n: int, k: int) -> Kernel:
        return Kernel.of("gemm", self.config.training.precision, operator=operator, batch=1, m=m, n=n, k=k)


def start_exchanges(
    tape: Tape, config: DlrmConfig, nodes: NodeTables | None, pooled: Tensor, partial: Tensor
) -> list[UnderWay]:
    """All that brings pooled embeddings to their samples: sums inside the nodes first, since the
    compute stream waits for them, then the exchanges that run under the bottom MLP."""
    under_way = []
    summed = sum_inside(tape, nodes, partial) if nodes else None
    whole = PooledExchange.among_all(config, without_node_tables(config.plan) if nodes else config.plan)
    if nodes is None or any(whole.widths):
        under_way.append(whole.start(tape, pooled))
    if nodes and summed:
        under_way.append(PooledExchange.among_peers(nodes).start(tape, summed))
    return under_way


def whole_tables(tape: Tape, config: DlrmConfig, pooled: Tensor) -> dict[str, Tensor]:
    """One tensor per table (samples × dim) out of the side-by-side shards of all ranks."""
    nodes = NodeTables.of(config, tape.device)
    shards = _side_by_side(config.plan, nodes)
    features = {table.name: table.features for table in config.tables}
    pieces = split(tape, pooled, [shard.width * features[shard.table] for shard in shards], 1)
    of_table: dict[str, list[Tensor]] = {}
    for shard, piece in zip(shards, pieces, strict=True):
        of_table.setdefault(shard.table, []).append(piece)
    added = {s.table for s in shards if s.kind == ROW_WISE or (s.kind == TABLE_ROW_WISE and not nodes)}
    return {name: _whole(tape, name in added, parts) for name, parts in of_table.items()}


def _side_by_side(plan: Plan, nodes: NodeTables | None) -> list[Shard]:
    """Shards in the order of their columns: rank after rank, then what was summed in each node, then
    what every rank holds."""
    exchanged = without_node_tables(plan) if nodes else plan
    sent = [s for rank in range(plan.ranks) for s in exchanged.on_rank(rank) if s.kind != DATA_PARALLEL]
    summed = [s for shards in nodes.shards for s in shards] if nodes else []
    return sent + summed + replicated(plan)


def _whole(tape: Tape, added: bool, parts: Sequence[Tensor]) -> Tensor:
    """Column parts stand side by side; row parts are partial sums of the same columns."""
    if len(parts) == 1:
        return parts[0]
    if not added:
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
    for collective in index_exchanges(config):
        with tape.op("c10d::alltoall_base_"):
            started = tape.communicate(collective, Wait(COMM, COMPUTE))
        if collective.name == "lengths":
            with tape.op("aten::to"):
                tape.wait(Wait(COMPUTE, started))
                tape.launch(
                    Kernel.of("copy_d2h", "int64", operator="splits", bytes=INDEX_BYTES * config.ranks)
                )
                tape.block_host()
    moved = config.batch * sum(table.lookups for table in config.tables) / config.ranks
    with tape.op("fbgemm::permute_2D_sparse_data"):
        tape.wait(Wait(COMPUTE, started))
        size = INDEX_BYTES * moved
        tape.launch(
            Kernel.of(
                "elementwise", "int64", operator="permute", elements=moved, read_bytes=size, write_bytes=size
            )
        )


def index_exchanges(config: DlrmConfig) -> tuple[Collective, Collective]:
    """Bag lengths and indices from the ranks of the samples to the ranks of the tables."""
    tables = config.table_of_name
    held = [[s for s in config.plan.on_rank(r) if s.kind != DATA_PARALLEL] for r in range(config.ranks)]
    bags = np.array([sum(tables[s.table].features for s in own) for own in held], dtype=np.float64)
    words = np.array(
        [sum(tables[s.table].index_words * s.height / tables[s.table].rows for s in own) for own in held]
    )
    local = config.batch_per_rank * INDEX_BYTES
    identical = np.ones(config.ranks)

    def exchanged(name: str, per_sample: FloatArray, senders: FloatArray) -> Collective:
        return _exchange(senders[:, None] * per_sample[None, :] * local, name, "int64")

    return exchanged("lengths", bags, identical), exchanged("indices", words, _senders(config))


def _senders(config: DlrmConfig) -> FloatArray:
    """How much more or less than the mean each rank's samples ask for, where bags differ in length.

    The sum over a rank's samples is near to normal; ranks stand at evenly spaced quantiles of it.
    """
    asked = np.array([table.lookups for table in config.tables])
    variation = np.array([np.expm1(table.bag_spread**2) ** 0.5 for table in config.tables])
    if not asked.sum() or not variation.any():
        return np.ones(config.ranks)
    relative = float(np.sqrt(((asked * variation) ** 2).sum()) / asked.sum() / config.batch_per_rank**0.5)
    normal = NormalDist()
    at = [normal.inv_cdf((rank + 0.5) / config.ranks) for rank in range(config.ranks)]
    return np.maximum(1 + relative * np.array(at), 0.0)
