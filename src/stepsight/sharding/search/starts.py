"""Where a search starts: greedy placements by the tables' modelled times, coarse and fine.

A step waits for the slowest rank after the copy of its indices, after the lookups, in the exchange, and after
the backward lookups. So a rank's load is four numbers, and a piece goes where it raises their fourth powers
least: what is scarce on a rank weighs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.pricing.loads import COLUMNS, EXTRAS, MEMORY, PartCosts
from stepsight.sharding.pricing.steps import PlanPricer
from stepsight.sharding.search.draft import Draft
from stepsight.sharding.search.rules import Rules, TableSharding, holders
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE

_CONSTANTS = area("sharding")
EXCHANGE_WEIGHTS = _CONSTANTS.numbers("EXCHANGE_WEIGHTS")
GRAINS = _CONSTANTS.numbers("GRAINS")
REPLICATE = _CONSTANTS.numbers("REPLICATE")
STEEPNESS = _CONSTANTS.whole("STEEPNESS")

WAITS = 4
"""Forward, exchange, backward, copy of the indices."""


MOST_REPLICATED = 0.25
"""Share of a rank's room that replicated tables may take: the others must be packed, too."""


def table_weights(pricer: PlanPricer, exchange_us_per_column: float) -> FloatArray:
    """What each whole table adds to a rank with its even share: µs of `WAITS`."""
    costs = pricer.costs
    rows = costs.matrix[: len(costs.tables)].transpose(1, 0, 2)
    even = rows.sum(axis=1, keepdims=True) / costs.ranks
    base, more = costs.times(even[None]), costs.times((even + rows)[None])
    forward = (more.forward_us - base.forward_us)[0].mean(axis=0)
    backward = (more.backward_us - base.backward_us)[0].mean(axis=0)
    exchange = 2 * exchange_us_per_column * rows[0, :, COLUMNS - EXTRAS]
    copy = (pricer.copy_us(more) - pricer.copy_us(base))[0].mean(axis=0)
    return np.asarray(np.maximum(np.stack([forward, exchange, backward, copy], axis=1), 1e-9))


def starts(costs: PartCosts, rules: Rules, weights: FloatArray) -> Iterator[Draft]:
    """Greedy drafts for every weighing of exchange, grain and replication that the rules allow."""
    seen: set[tuple[object, ...]] = set()
    for limit in REPLICATE if DATA_PARALLEL in rules.kinds and costs.ranks > 1 else (0.0,):
        replicated = {i for i, t in enumerate(costs.tables) if t.weight_bytes <= limit}
        if sum(_bytes(costs, i) for i in replicated) > MOST_REPLICATED * rules.memory_bytes:
            continue
        for grain in GRAINS:
            for by_rows in (False, True):
                pieces, spread = _cut(costs, rules, weights, grain, replicated, by_rows)
                key = (len(replicated), tuple(pieces), tuple(spread))
                if key not in seen:
                    seen.add(key)
                    for weight in EXCHANGE_WEIGHTS:
                        yield _greedy(
                            costs, rules, weights * (1.0, weight, 1.0, 1.0), pieces, spread, replicated
                        )


def _cut(
    costs: PartCosts, rules: Rules, weights: FloatArray, grain: float, skip: set[int], by_rows: bool
) -> tuple[list[tuple[int, int]], list[int]]:
    """(table, width) pieces, none above the grain where columns can be cut; and tables to cut by rows."""
    share = grain * np.maximum(weights.sum(axis=0) / costs.ranks, 1e-9)
    pieces: list[tuple[int, int]] = []
    spread: list[int] = []
    for table, whole in enumerate(costs.tables):
        if table in skip:
            continue
        large = float((weights[table] / share).max())
        large = max(large, _bytes(costs, table) / rules.memory_bytes)
        if large > 1 and by_rows and _in_node(costs, rules, table):
            spread.append(table)
            continue
        open_pieces = [whole.dim]
        while open_pieces:
            width = open_pieces.pop()
            halves = rules.halves(width)
            if halves and costs.ranks > 1 and large * width / whole.dim > 1:
                open_pieces += halves
            else:
                pieces.append((table, width))
    return pieces, spread


def _greedy(
    costs: PartCosts, rules: Rules, weights: FloatArray, pieces: Sequence[tuple[int, int]],
    spread: Sequence[int], replicated: set[int],
) -> Draft:  # fmt: skip
    """From the largest piece down, each to the rank (by rows: the node) that it burdens least."""
    draft = Draft(costs)
    for table in sorted(replicated):
        draft.apply(TableSharding(table, DATA_PARALLEL))
    room = rules.memory_bytes - draft.sums[0, :, MEMORY - EXTRAS]
    share = np.maximum(weights.sum(axis=0) / costs.ranks, 1e-9)
    load = np.zeros((costs.ranks, WAITS))
    for table in sorted(spread, key=lambda t: -float(weights[t].max())):
        options = _in_node(costs, rules, table)
        part = weights[table] / costs.ranks_per_node
        burdens = [_burden(load[_ranks(costs, o)].mean(axis=0), part, share) for o in options]
        chosen = options[int(np.argmin(burdens))]
        draft.apply(chosen)
        load[_ranks(costs, chosen)] += part
        room[_ranks(costs, chosen)] -= _bytes(costs, table) / costs.ranks_per_node
    dims = np.array([costs.tables[table].dim for table, _ in pieces])
    fraction = np.array([width for _, width in pieces]) / np.maximum(dims, 1)
    sizes = weights[[table for table, _ in pieces]] * fraction[:, None]
    for i in np.argsort(-(sizes / share).max(axis=1), kind="stable").tolist():
        table, width = pieces[i]
        needed = _bytes(costs, table) * float(fraction[i])
        fits = room >= needed
        if not fits.any():
            _squeeze_in(draft, rules, table, width, room)
            continue
        rank = int(np.argmin(np.where(fits, _burden(load, sizes[i], share), np.inf)))
        draft.add(table, rank, width)
        load[rank] += sizes[i]
        room[rank] -= needed
    return draft


def _burden(load: FloatArray, added: FloatArray, share: FloatArray) -> FloatArray:
    """By how much a piece raises the fourth powers of a rank's loads, each against its even share."""
    raised = ((load + added) / share) ** STEEPNESS - (load / share) ** STEEPNESS
    return np.asarray((raised * share).sum(axis=-1))


def _in_node(costs: PartCosts, rules: Rules, table: int) -> list[TableSharding]:
    return [s for s in rules.spreads(costs, table) if s.kind == TABLE_ROW_WISE]


def _ranks(costs: PartCosts, spread: TableSharding) -> list[int]:
    return [rank for rank, _ in holders(costs, spread)]


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
