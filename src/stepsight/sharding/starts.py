"""Where a search starts: greedy placements by the tables' modelled times, coarse and fine; a packing by size.

A step waits for the slowest rank after the copy of its indices, after the lookups, in the exchange, and after
the backward lookups. So a rank's load is four numbers, and a piece goes where it raises their fourth powers
least: what is scarce on a rank weighs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.draft import Draft
from stepsight.sharding.loads import COLUMNS, EXTRAS, MEMORY, PartCosts, TablePart
from stepsight.sharding.rules import Rules, TableSharding, holders
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE

C = area("sharding")
EXCHANGE_WEIGHTS = C.numbers("EXCHANGE_WEIGHTS")
GRAINS = C.numbers("GRAINS")
REPLICATE = C.numbers("REPLICATE")
NODES = C.whole("NODES")

WAITS = 4
"""Forward, exchange, backward, copy of the indices."""
MOST_REPLICATED = 0.25
"""Share of a rank's room that replicated tables may take: the others must be packed, too."""
SLACK = 1e-9
"""Rounding allowance, as a share of a rank's room."""
Piece = tuple[int, int]
"""A table and this many of its columns."""


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


def starts(
    costs: PartCosts, rules: Rules, weights: FloatArray, tried: dict[tuple[object, ...], bool]
) -> Iterator[Draft]:
    """Greedy drafts for every weighing of exchange, grain and replication that the rules allow.

    ``tried`` says of each draft that was made before, with fewer kinds, whether it fits: none is made twice,
    and those that fit need no row-wise tables.
    """
    by_row = ROW_WISE in rules.kinds
    for limit in REPLICATE if DATA_PARALLEL in rules.kinds else (0.0,):
        replicated = {i for i, t in enumerate(costs.tables) if t.weight_bytes <= limit}
        if _bytes(costs)[list(replicated)].sum() > MOST_REPLICATED * rules.memory_bytes:
            continue
        for grain in GRAINS:
            for in_nodes in (False, True):
                pieces, spread = _cut(costs, rules, weights, grain, replicated, in_nodes)
                key = (len(replicated), tuple(pieces), tuple(spread))
                this = (*key, by_row)
                if this in tried or tried.get((*key, False)):
                    continue
                drafts = [
                    _greedy(costs, rules, weights * (1.0, weight, 1.0, 1.0), pieces, spread, replicated)
                    for weight in EXCHANGE_WEIGHTS
                ]
                tried[this] = all(
                    draft.sums[0, :, MEMORY - EXTRAS].max() <= rules.memory_bytes for draft in drafts
                )
                yield from drafts


def _cut(
    costs: PartCosts, rules: Rules, weights: FloatArray, grain: float, skip: set[int], by_rows: bool
) -> tuple[list[tuple[int, int]], list[int]]:
    """(table, width) pieces, none above the grain where columns can be cut; and tables to cut by rows."""
    share = grain * np.maximum(weights.sum(axis=0) / costs.ranks, 1e-9)
    filled = _bytes(costs) / rules.memory_bytes
    pieces: list[tuple[int, int]] = []
    spread: list[int] = []
    for table, large in enumerate(np.maximum((weights / share).max(axis=1), filled).tolist()):
        whole = costs.tables[table]
        if table in skip:
            continue
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
    """From the largest piece down, each to the rank (by rows: the node) that it burdens least.

    A rank's memory counts as one more load, in proportion to its room.
    """
    draft = Draft(costs)
    for table in sorted(replicated):
        draft.apply(TableSharding(table, DATA_PARALLEL))
    share = np.maximum(weights.sum(axis=0) / costs.ranks, 1e-9)
    share = np.append(share, share.sum())
    weights = np.column_stack([weights, _bytes(costs) / rules.memory_bytes * share[-1]])
    load = np.zeros((costs.ranks, WAITS + 1))
    for table in sorted(spread, key=lambda t: -float(weights[t].max())):
        options = _in_node(costs, rules, table)
        part = weights[table] / costs.ranks_per_node
        burdens = [_burden(load[_ranks(costs, o)].mean(axis=0), part, share) for o in options]
        chosen = options[int(np.argmin(burdens))]
        draft.apply(chosen)
        load[_ranks(costs, chosen)] += part
    dims = np.array([costs.tables[table].dim for table, _ in pieces])
    fraction = np.array([width for _, width in pieces]) / np.maximum(dims, 1)
    sizes = weights[[table for table, _ in pieces]] * fraction[:, None]
    for i in np.argsort(-(sizes / share).max(axis=1), kind="stable").tolist():
        table, width = pieces[i]
        if table in draft.spread:
            continue
        room = rules.memory_bytes - draft.sums[0, :, MEMORY - EXTRAS]
        fits = room >= costs.column_part(table, width)[0, MEMORY - EXTRAS]
        by_row = [s for s in rules.spreads(costs, table) if s.kind == ROW_WISE] if not fits.any() else []
        if by_row:  # with the pieces of it that lie on ranks already
            load -= np.outer([held.get(table, 0) / dims[i] for held in draft.widths], weights[table])
            load += weights[table] / costs.ranks
            draft.apply(by_row[0])
            continue
        burden = _burden(load, sizes[i], share)
        rank = int(np.argmin(np.where(fits, burden, np.inf)) if fits.any() else np.argmax(room))
        draft.add(table, rank, width)
        load[rank] += sizes[i]
    return draft


def _burden(load: FloatArray, added: FloatArray, share: FloatArray) -> FloatArray:
    """By how much a piece raises the fourth powers of a rank's loads, each against its even share."""
    raised = _fourth((load + added) / share) - _fourth(load / share)
    return np.asarray((raised * share).sum(axis=-1))


def _fourth(values: FloatArray) -> FloatArray:
    squares = values * values
    return squares * squares


def _in_node(costs: PartCosts, rules: Rules, table: int) -> list[TableSharding]:
    return [s for s in rules.spreads(costs, table) if s.kind == TABLE_ROW_WISE]


def _ranks(costs: PartCosts, spread: TableSharding) -> list[int]:
    return [rank for rank, _ in holders(costs, spread)]


def _bytes(costs: PartCosts) -> FloatArray:
    """Memory of each whole table."""
    return costs.matrix[: len(costs.tables), 0, MEMORY - EXTRAS]


def packed(costs: PartCosts, rules: Rules) -> Draft | None:
    """A draft that fits, or None where none was found."""
    for pieces, spread in _ways(costs, rules):
        room = np.full(costs.ranks, rules.memory_bytes)
        for choice in spread:
            for rank, (start, stop) in holders(costs, choice):
                room[rank] -= _spread_bytes(costs, choice, stop - start)
        sizes = [_piece_bytes(costs, piece) for piece in pieces]
        placed = place(sizes, room.tolist())
        if placed is not None:
            draft = Draft(costs)
            for choice in spread:
                draft.apply(choice)
            for (table, width), rank in zip(pieces, placed, strict=True):
                draft.add(table, rank, width)
            return draft
    return None


def place(sizes: Sequence[float], room: Sequence[float]) -> list[int] | None:
    """The rank of each piece such that all fit, or None: best fit first, then every placement."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    slack = SLACK * max(room, default=0.0)
    if sum(sizes) > sum(room) + slack or min(room, default=0.0) < -slack:
        return None
    quick = _best_fit(sizes, order, list(room), slack)
    return quick if quick is not None else _branch_and_bound(sizes, order, list(room), slack)


def _ways(costs: PartCosts, rules: Rules) -> Iterator[tuple[list[Piece], list[TableSharding]]]:
    """Sets of pieces and spread tables, from all tables whole to all of them cut as far as allowed."""
    pieces: list[Piece] = [(i, table.dim) for i, table in enumerate(costs.tables)]
    yield pieces, []
    if costs.ranks == 1:
        return
    finer = list(pieces)
    while (finest := _halved(costs, rules, finer)) is not None:
        finer = finest
        yield finer, []
    spread: list[TableSharding] = []
    left = sorted(pieces, key=lambda piece: -_piece_bytes(costs, piece))
    while left:
        ways = [s for s in rules.spreads(costs, left[0][0]) if s.kind == ROW_WISE]
        if not ways:
            return
        spread = [*spread, ways[0]]
        left = left[1:]
        yield left, spread


def _halved(costs: PartCosts, rules: Rules, pieces: Sequence[Piece]) -> list[Piece] | None:
    """The pieces with the largest one that may be cut in two halves."""
    for piece in sorted(pieces, key=lambda p: (-_piece_bytes(costs, p), p)):
        halves = rules.halves(piece[1])
        if halves:
            rest = list(pieces)
            rest.remove(piece)
            return [*rest, (piece[0], halves[0]), (piece[0], halves[1])]
    return None


def _best_fit(
    sizes: Sequence[float], order: Sequence[int], room: list[float], slack: float
) -> list[int] | None:
    placed = [0] * len(sizes)
    for i in order:
        fitting = [r for r in range(len(room)) if room[r] + slack >= sizes[i]]
        if not fitting:
            return None
        rank = min(fitting, key=lambda r: (room[r], r))
        room[rank] -= sizes[i]
        placed[i] = rank
    return placed


def _branch_and_bound(
    sizes: Sequence[float], order: Sequence[int], room: list[float], slack: float
) -> list[int] | None:
    """Depth first, the largest piece first; ranks with equal room are identical, so one of them is tried."""
    placed = [0] * len(sizes)
    nodes = 0

    def tried(depth: int) -> Iterator[int]:
        seen: set[float] = set()
        for rank in sorted(range(len(room)), key=lambda r: (room[r], r)):
            if room[rank] + slack >= sizes[order[depth]] and room[rank] not in seen:
                seen.add(room[rank])
                yield rank

    open_choices = [tried(0)] if order else []
    while open_choices:
        depth = len(open_choices) - 1
        rank = next(open_choices[-1], None)
        nodes += 1
        if nodes > NODES:
            return None
        if rank is None:
            open_choices.pop()
            if open_choices:  # take back the choice above
                room[placed[order[depth - 1]]] += sizes[order[depth - 1]]
            continue
        placed[order[depth]] = rank
        room[rank] -= sizes[order[depth]]
        if depth + 1 == len(order):
            return placed
        open_choices.append(tried(depth + 1))
    return None


def _piece_bytes(costs: PartCosts, piece: Piece) -> float:
    table, width = piece
    return float(costs.column_part(table, width)[:, MEMORY - EXTRAS].max())


def _spread_bytes(costs: PartCosts, choice: TableSharding, height: int) -> float:
    part = TablePart(choice.table, costs.tables[choice.table].dim, height)
    return float(costs.matrix_row(part)[:, MEMORY - EXTRAS].max())
