"""Rules of thumb that place whole tables: what people use, and what the search must beat.

The seven sharders of METHOD §7. A greedy sharder takes the tables from the costliest down
and gives each to the rank with the least cost so far; they differ in what they call cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from stepsight.errors import InputError
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, Plan, Shard
from stepsight.tables.table import Table, check_tables

Sharder = Callable[[Sequence[Table], int], Plan]


def round_robin(tables: Sequence[Table], ranks: int) -> Plan:
    """Table i goes to rank i mod n."""
    _check(tables, ranks)
    return Plan.table_wise(tables, [i % ranks for i in range(len(tables))], ranks, "round_robin")


def chunks(tables: Sequence[Table], ranks: int) -> Plan:
    """Consecutive runs of equally many tables."""
    _check(tables, ranks)
    return Plan.table_wise(tables, [i * ranks // len(tables) for i in range(len(tables))], ranks, "chunks")


def random(tables: Sequence[Table], ranks: int, seed: int = 0) -> Plan:
    """Each table on a rank drawn at random, the same one for the same seed."""
    _check(tables, ranks)
    drawn = np.random.default_rng(seed).integers(0, ranks, len(tables))
    return Plan.table_wise(tables, drawn.tolist(), ranks, "random")


def size_cost(table: Table) -> float:
    """E·D: the weights."""
    return table.rows * table.dim


def lookup_cost(table: Table) -> float:
    """D·L: the values read per sample."""
    return table.dim * table.lookups


def norm_lookup_cost(table: Table) -> float:
    """D·L/E: the values read per sample, normalised by the rows that they spread over."""
    return table.dim * table.lookups / table.rows


def size_lookup_cost(table: Table) -> float:
    """D·L·log10 E: reads, dearer in a larger table, which the caches hold less of."""
    return table.dim * table.lookups * math.log10(max(table.rows, 10))


def greedy(tables: Sequence[Table], ranks: int, cost: Callable[[Table], float], name: str) -> Plan:
    """From the costliest table down, each to the rank with the least cost so far.

    Equal ranks are told apart by how many tables they hold, so that tables without any
    cost spread out too.
    """
    _check(tables, ranks)
    costs = [cost(table) for table in tables]
    heap: list[tuple[float, int, int]] = [(0.0, 0, rank) for rank in range(ranks)]
    rank_of = [0] * len(tables)
    for i in sorted(range(len(tables)), key=lambda i: (-costs[i], i)):
        load, held, rank = heapq.heappop(heap)
        rank_of[i] = rank
        heapq.heappush(heap, (load + costs[i], held + 1, rank))
    return Plan.table_wise(tables, rank_of, ranks, name)


def _greedy_by(name: str, cost: Callable[[Table], float]) -> Sharder:
    def sharder(tables: Sequence[Table], ranks: int) -> Plan:
        return greedy(tables, ranks, cost, name)

    sharder.__name__ = name
    sharder.__doc__ = f"Greedy by {cost.__doc__}"
    return sharder


SHARDERS: dict[str, Sharder] = {
    "round_robin": round_robin,
    "chunks": chunks,
    "random": random,
    "size_greedy": _greedy_by("size_greedy", size_cost),
    "lookup_greedy": _greedy_by("lookup_greedy", lookup_cost),
    "norm_lookup_greedy": _greedy_by("norm_lookup_greedy", norm_lookup_cost),
    "size_lookup_greedy": _greedy_by("size_lookup_greedy", size_lookup_cost),
}
"""The sharders by name."""
_KNOWLEDGE = {
    "size_lookup_greedy": 0, "lookup_greedy": 1, "size_greedy": 2, "norm_lookup_greedy": 3, "round_robin": 5,
    "chunks": 6, "random": 7,
}  # fmt: skip
"""How much of the tables a rule looks at: reads and size, one of them, nothing. Other plans are 4."""


def knowledge(sharder: str) -> int:
    """The order in which plans that are otherwise alike are preferred, by the rule that made them."""
    return _KNOWLEDGE.get(sharder, 4)


def beside_the_bottom_mlp(tables: Sequence[Table], ranks: int) -> Plan:
    """NVIDIA's example: at most ceil(tables / ranks) a rank, the largest to the rank with the fewest
    rows so far; with more than four ranks rank 0, which runs the bottom MLP, holds none."""
    _check(tables, ranks)
    holders = list(range(1, ranks)) if ranks > 4 else list(range(ranks))
    most = -(-len(tables) // len(holders))
    held = dict.fromkeys(holders, (0, 0))
    rank_of = [0] * len(tables)
    for i in sorted(range(len(tables)), key=lambda i: (-tables[i].rows, i)):
        rank = min((r for r in holders if held[r][1] < most), key=lambda r: (held[r][0], r))
        rank_of[i] = rank
        held[rank] = held[rank][0] + tables[i].rows, held[rank][1] + 1
    return Plan.table_wise(tables, rank_of, ranks, "nvidia")


REPLICATED_BYTES = 8e6
"""Tables up to this size are held by every rank in HugeCTR's published plans (DP_SHARDING_THRESHOLD 0.008, in
GB)."""


def hybrid(tables: Sequence[Table], ranks: int) -> Plan:
    """HugeCTR's planner: small tables on every rank; of the others those that ask for more than an even share
    of the lookups by rows over all ranks, the rest whole, costliest first to the least loaded rank."""
    _check(tables, ranks)
    large = [t for t in tables if t.weight_bytes > REPLICATED_BYTES]
    share = sum(lookup_cost(t) for t in large) / ranks
    split = {t.name for t in large if ranks > 1 and lookup_cost(t) > share and t.rows >= ranks}
    loads = [0.0] * ranks
    rank_of: dict[str, int] = {}
    for table in sorted((t for t in large if t.name not in split), key=lambda t: (-lookup_cost(t), t.name)):
        rank_of[table.name] = min(range(ranks), key=lambda r: (loads[r], r))
        loads[rank_of[table.name]] += lookup_cost(table)
    shards: list[Shard] = []
    for table in tables:
        columns, rows = (0, table.dim), (0, table.rows)
        if table.name in rank_of:
            shards.append(Shard(table.name, rank_of[table.name], columns, rows))
        elif table.name in split:
            block = -(-table.rows // ranks)
            edges = [(min(i * block, table.rows), min((i + 1) * block, table.rows)) for i in range(ranks)]
            shards += [
                Shard(table.name, rank, columns, edge, ROW_WISE)
                for rank, edge in enumerate(edges)
                if edge[1] > edge[0]
            ]
        elif ranks == 1:
            shards.append(Shard(table.name, 0, columns, rows))
        else:
            shards += [Shard(table.name, rank, columns, rows, DATA_PARALLEL) for rank in range(ranks)]
    return Plan(ranks, tuple(shards), "hugectr")


PLACEMENTS: dict[str, Sharder] = {**SHARDERS, "nvidia": beside_the_bottom_mlp, "hugectr": hybrid}
"""What a workload file may name: the sharders that are compared, NVIDIA's example's and HugeCTR's."""


def _check(tables: Sequence[Table], ranks: int) -> None:
    check_tables(tables)
    if ranks < 1:
        raise InputError("ranks", f"is {ranks}", "a plan needs at least one rank")
