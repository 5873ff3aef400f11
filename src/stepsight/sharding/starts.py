"""Where a search starts: greedy placements by the tables' modelled times, coarse and fine."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.sharding.draft import Draft
from stepsight.sharding.loads import COLUMNS, EXTRAS, MEMORY, PartCosts
from stepsight.sharding.plan import DATA_PARALLEL, ROW_WISE
from stepsight.sharding.rules import Rules, Spread

EXCHANGE_WEIGHTS = (0.0, 0.5, 1.0, 2.0)
"""How much a column to send counts against lookup time: the right weight depends on what is exposed."""
GRAINS = (float("inf"), 1.0, 0.5)
"""Tables above this multiple of a rank's even share are cut column-wise."""
REPLICATE = (0.0, 2.0**18, 2.0**22)
"""Tables up to this many bytes are replicated."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One number a table for greedy placement: its lookup time, and its exchange time."""

    lookup_us: FloatArray
    exchange_us: FloatArray

    def of(self, exchange_weight: float) -> FloatArray:
        return self.lookup_us + exchange_weight * self.exchange_us


def table_weights(costs: PartCosts, exchange_us_per_column: float) -> Weights:
    """What each whole table adds to a rank that carries its even share, in µs (mean over days)."""
    rows = costs.matrix[: len(costs.tables)].transpose(1, 0, 2)
    even = rows.sum(axis=1, keepdims=True) / costs.ranks
    base, more = costs.times(even[None]), costs.times((even + rows)[None])
    lookup = (more.forward_us - base.forward_us) + (more.backward_us - base.backward_us)
    columns = rows[0, :, COLUMNS - EXTRAS]
    return Weights(lookup[0].mean(axis=0), exchange_us_per_column * columns)


def starts(costs: PartCosts, rules: Rules, weights: Weights) -> Iterator[Draft]:
    """Greedy drafts for every weighing of exchange, grain and replication that the rules allow."""
    seen: set[tuple[object, ...]] = set()
    for limit in REPLICATE if DATA_PARALLEL in rules.kinds and costs.ranks > 1 else (0.0,):
        replicated = [i for i, t in enumerate(costs.tables) if t.weight_bytes <= limit]
        for grain in GRAINS:
            for weight in EXCHANGE_WEIGHTS:
                cost = weights.of(weight)
                pieces = _cut(costs, rules, cost, grain, set(replicated))
                key = (len(replicated), tuple(pieces), weight)
                if key not in seen:
                    seen.add(key)
                    yield _greedy(costs, rules, cost, pieces, replicated)


def _cut(
    costs: PartCosts, rules: Rules, cost: FloatArray, grain: float, skip: set[int]
) -> list[tuple[int, int]]:
    """(table, width) pieces: tables above the grain halved until they are below it."""
    share = grain * max(float(cost.sum()) / costs.ranks, 1e-9)
    pieces: list[tuple[int, int]] = []
    for table, whole in enumerate(costs.tables):
        if table in skip:
            continue
        open_pieces = [whole.dim]
        while open_pieces:
            width = open_pieces.pop()
            halves = rules.halves(width)
            large = cost[table] * width / whole.dim > share
            heavy = _bytes(costs, table) * width / whole.dim > rules.memory_bytes
            if halves and costs.ranks > 1 and (large or heavy):
                open_pieces += halves
            else:
                pieces.append((table, width))
    return pieces


def _greedy(
    costs: PartCosts,
    rules: Rules,
    cost: FloatArray,
    pieces: Sequence[tuple[int, int]],
    replicated: Sequence[int],
) -> Draft:
    """From the costliest piece down, each to the least loaded rank with room for it."""
    draft = Draft(costs)
    for table in replicated:
        draft.apply(Spread(table, DATA_PARALLEL))
    room = rules.memory_bytes - draft.sums[0, :, MEMORY - EXTRAS]
    heap = [(0.0, 0, rank) for rank in range(costs.ranks)]

    def weight(piece: tuple[int, int]) -> float:
        return float(cost[piece[0]]) * piece[1] / costs.tables[piece[0]].dim

    for piece in sorted(pieces, key=lambda p: (-weight(p), p)):
        table, width = piece
        needed = _bytes(costs, table) * width / costs.tables[table].dim
        passed: list[tuple[float, int, int]] = []
        while heap and room[heap[0][2]] < needed:
            passed.append(heapq.heappop(heap))
        if heap:
            load, held, rank = heapq.heappop(heap)
            draft.add(table, rank, width)
            room[rank] -= needed
            heapq.heappush(heap, (load + weight(piece), held + 1, rank))
        else:
            _squeeze_in(draft, rules, table, width, room)
        for entry in passed:
            heapq.heappush(heap, entry)
    return draft


def _squeeze_in(draft: Draft, rules: Rules, table: int, width: int, room: FloatArray) -> None:
    """No rank has room for the piece: by rows over all ranks where allowed, else where most is left."""
    by_rows = [s for s in rules.spreads(draft.costs, table) if s.kind == ROW_WISE]
    if by_rows and width == draft.costs.tables[table].dim:
        draft.apply(by_rows[0])
        room -= _bytes(draft.costs, table) / draft.costs.ranks
        return
    rank = int(np.argmax(room))
    draft.add(table, rank, width)
    room[rank] -= _bytes(draft.costs, table) * width / draft.costs.tables[table].dim


def _bytes(costs: PartCosts, table: int) -> float:
    return float(costs.matrix[table, 0, MEMORY - EXTRAS])
