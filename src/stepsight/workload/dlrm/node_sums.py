"""Tables cut by rows inside one node (table-row-wise): their parts are summed before they leave it.

Every rank of the node looks its rows up for the whole batch. A reduce_scatter inside the node
adds the partial sums and leaves each rank the samples of the ranks with its own place in their
nodes; an all_to_all among those peers, one of each node, brings every sample home. The backward
pass goes the other way: all_to_all, then an all_gather inside the node. The compute stream waits
for the reduce_scatter before the all_to_all may start (TorchRec's TwRwPooledEmbeddingDist).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepsight.errors import InputError
from stepsight.program.job import COMPUTE, Collective, Group, Op, Wait
from stepsight.tables.plan import TABLE_ROW_WISE, Plan, Shard
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor

NODE, PEERS = "node", "peers"
"""The groups: the ranks of a node; the ranks with the same place in their nodes."""
NODE_COMM = "comm_node"
"""The stream of collectives inside the node (each process group has its own)."""
SUM, GATHER = "sum_in_node", "gather_in_node"
"""Marks of the two collectives that each rank calls with its own node's bytes."""


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

    def groups(self) -> dict[str, tuple[Group, ...]]:
        ranks, size = self.config.ranks, self.per_node
        nodes = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
        peers = [tuple(range(place, ranks, size)) for place in range(size)]
        return {
            name: tuple(Group(f"{name}{i}", members) for i, members in enumerate(sets))
            for name, sets in ((NODE, nodes), (PEERS, peers))
        }

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

        def request(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            tape.wait(Wait(COMPUTE, tape.marks[GATHER]))
            return (Tensor.new(pooled.shape),)

        under_way = summed.empty_like()
        tape.record("ReduceScatter_ReqBackward", (pooled,), (under_way,), request)
    with tape.op("ReduceScatter_Wait", (under_way,)):
        tape.wait(Wait(COMPUTE, tape.marks[SUM]))

        def wait(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            with tape.suspended_op(), tape.op("c10d::_allgather_base_", (summed,)):
                gather = tables.inside("all_gather", 0)
                tape.marks[GATHER] = tape.communicate(gather, Wait(NODE_COMM, COMPUTE))
            return (Tensor.new(under_way.shape),)

        tape.record("ReduceScatter_WaitBackward", (under_way,), (summed,), wait)
    return summed
