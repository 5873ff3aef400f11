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
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE, Plan, Shard
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
SENT_COST = 7.4 / 4
"""Lookups that take as long as sending one vector, by the defaults of HugeCTR's planner: bandwidth of memory
over that of links (3,350 over 450 GB/s), four times the bytes for a lookup and its update."""


def hybrid(tables: Sequence[Table], ranks: int) -> Plan:
    """HugeCTR's planner: small tables on every rank, the others cut by rows into as many parts as an even
    load asks for, costliest part first to the least loaded rank. A part costs its lookups, and the pooled
    vector that it sends as much as `SENT_COST` of them: cutting further than that gains nothing."""
    _check(tables, ranks)
    large = [t for t in tables if t.weight_bytes > REPLICATED_BYTES]
    share = sum(lookup_cost(t) + SENT_COST * t.output_columns for t in large) / ranks
    loads, shards = [0.0] * ranks, list[Shard]()
    parts = {t.name: _row_parts(t, share, ranks) for t in large}

    def cost(table: Table) -> float:
        return lookup_cost(table) / parts[table.name] + SENT_COST * table.output_columns

    for table in sorted(large, key=lambda t: (-cost(t), t.name)):
        count = parts[table.name]
        block = -(-table.rows // count)
        chosen = sorted(range(ranks), key=lambda r: (loads[r], r))[:count]
        for number, rank in enumerate(chosen):
            rows = number * block, min((number + 1) * block, table.rows)
            kind = ROW_WISE if count > 1 else TABLE_WISE
            shards.append(Shard(table.name, rank, (0, table.dim), rows, kind))
            loads[rank] += cost(table)
    for table in tables:
        if table.name not in parts:
            kind = DATA_PARALLEL if ranks > 1 else TABLE_WISE
            whole = (0, table.dim), (0, table.rows)
            shards += [Shard(table.name, rank, *whole, kind) for rank in range(ranks)]
    order = {table.name: i for i, table in enumerate(tables)}
    return Plan(ranks, tuple(sorted(shards, key=lambda s: (order[s.table], s.rank))), "hugectr")


def _row_parts(table: Table, share: float, ranks: int) -> int:
    """How many parts bring a table's cost down to an even share, as far as cutting it pays."""
    sent = SENT_COST * table.output_columns
    wanted = lookup_cost(table) / max(share - sent, sent)
    return max(1, min(math.ceil(wanted), math.floor(lookup_cost(table) / sent), ranks, table.rows))


PLACEMENTS: dict[str, Sharder] = {**SHARDERS, "nvidia": beside_the_bottom_mlp, "hugectr": hybrid}
"""What a workload file may name: the sharders that are compared, NVIDIA's example's and HugeCTR's."""


def _check(tables: Sequence[Table], ranks: int) -> None:
    check_tables(tables)
    if ranks < 1:
        raise InputError("ranks", f"is {ranks}", "a plan needs at least one rank")
