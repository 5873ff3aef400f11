"""Rules of thumb that place whole tables: what people use, and what the search must beat.

The seven sharders of METHOD §7. A greedy sharder takes the tables from the costliest down
and gives each to the rank with the least cost so far; they differ in what they call cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

    Equal ranks are distinguished by how many tables they hold, so that tables without any
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


NODE_RANKS = 8
"""GPUs of a node (DGX and HGX systems from Volta to Blackwell)."""
ROUNDS = 20
"""Plans that HugeCTR's planner compares."""
VALUE_BYTES = 8
"""A weight and its adagrad state."""


@dataclass(frozen=True, slots=True)
class _Level:
    """Between what HugeCTR's planner shares tables out, with the settings of its published runs.

    Tables up to ``replicated_bytes`` with their state are held by every rank (DP_SHARDING_THRESHOLD). Sending
    one vector costs as much as ``sent_cost`` lookups (MEM_COMM_BW_RATIO over four: a lookup and its update
    move four times the bytes). ``memory_bytes``: what tables may take on each (memory_cap_for_embedding).
    """

    replicated_bytes: float
    sent_cost: float
    memory_bytes: float


GPUS = _Level(8e6, 7 / 4, 60e9)
"""Of one node, over NVLink."""
NODES = _Level(12.5e6, 67 / 4, NODE_RANKS * 60e9)
"""Over InfiniBand; each table is then cut by rows over the GPUs of its node."""


def node_ranks(ranks: int) -> int:
    """Ranks that exchange among themselves first in HugeCTR: all of them, or a node's."""
    return NODE_RANKS if ranks > NODE_RANKS and ranks % NODE_RANKS == 0 else ranks


def hybrid(tables: Sequence[Table], ranks: int) -> Plan:
    """HugeCTR's planner (samples/dlrm, ``auto`` and over several nodes ``hier_auto``): small tables on every
    rank, the others cut by rows into 1, 2, 4 … parts, each to the least loaded place. In every round the
    hottest part is cut in two; the plan whose busiest place costs least wins."""
    _check(tables, ranks)
    per_node = node_ranks(ranks)
    level, places = (GPUS, ranks) if per_node == ranks else (NODES, ranks // per_node)
    inside = ranks // places
    large = [t for t in tables if t.rows * t.dim * VALUE_BYTES > level.replicated_bytes]
    shards: list[Shard] = []
    for table, held in _shared_out(large, places, level):
        holders = [place * inside + i for place in held for i in range(inside)]
        block = -(-table.rows // len(holders))
        kind = ROW_WISE if len(holders) > 1 else TABLE_WISE
        for number, rank in enumerate(holders):
            rows = min(number * block, table.rows), min((number + 1) * block, table.rows)
            if rows[1] > rows[0]:
                shards.append(Shard(table.name, rank, (0, table.dim), rows, kind))
    kind = DATA_PARALLEL if ranks > 1 else TABLE_WISE
    named = {table.name for table in large}
    for table in (t for t in tables if t.name not in named):
        shards += [Shard(table.name, rank, (0, table.dim), (0, table.rows), kind) for rank in range(ranks)]
    order = {table.name: i for i, table in enumerate(tables)}
    return Plan(ranks, tuple(sorted(shards, key=lambda s: (order[s.table], s.rank))), "hugectr")


def _shared_out(tables: Sequence[Table], places: int, level: _Level) -> list[tuple[Table, list[int]]]:
    """The places of each table in the best of the planner's rounds."""
    parts = [1] * len(tables)
    best = sum(lookup_cost(t) / places + level.sent_cost * t.output_columns for t in tables)
    found = [list(range(places)) for _ in tables]
    for _ in range(ROUNDS):
        placed = _placed(tables, parts, places, level)
        if isinstance(placed, int):  # a table that has room nowhere
            if 2 * parts[placed] > places:
                break
            parts[placed] *= 2
            continue
        cost, held = placed
        if cost < best:
            best, found = cost, held
        cut = [i for i in range(len(tables)) if 2 * parts[i] <= min(places, tables[i].rows)]
        if not cut:
            break
        parts[max(cut, key=lambda i: (lookup_cost(tables[i]) / parts[i], -i))] *= 2
    return list(zip(tables, found, strict=True))


def _placed(
    tables: Sequence[Table], parts: Sequence[int], places: int, level: _Level
) -> tuple[float, list[list[int]]] | int:
    """Parts, hottest first, each to the least loaded place that has room and no part of the table yet: the
    cost of the busiest place and each table's places; or the table that has room nowhere."""
    load, memory = [0.0] * places, [0.0] * places
    held: list[list[int]] = [[] for _ in tables]
    for i in sorted(range(len(tables)), key=lambda i: (-lookup_cost(tables[i]) / parts[i], i)):
        table = tables[i]
        size = table.rows * table.dim * VALUE_BYTES / parts[i]
        for _ in range(parts[i]):
            open_to = [
                p for p in range(places) if p not in held[i] and memory[p] + size <= level.memory_bytes
            ]
            if not open_to:
                return i
            place = min(open_to, key=lambda p: (load[p], p))
            held[i].append(place)
            load[place] += lookup_cost(table) / parts[i] + level.sent_cost * table.output_columns
            memory[place] += size
    return max(load, default=0.0), [sorted(some) for some in held]


PLACEMENTS: dict[str, Sharder] = {**SHARDERS, "nvidia": beside_the_bottom_mlp, "hugectr": hybrid}
"""What a workload file may name: the sharders that are compared, NVIDIA's example's and HugeCTR's."""
SEARCHED = "search"
"""The plan that `stepsight shard` finds, where a search over settings asks for it."""


def _check(tables: Sequence[Table], ranks: int) -> None:
    check_tables(tables)
    if ranks < 1:
        raise InputError("ranks", f"is {ranks}", "a plan needs at least one rank")
