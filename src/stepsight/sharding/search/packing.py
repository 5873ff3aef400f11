"""A plan that fits, where one exists: tables packed by their bytes alone.

Largest first, each where the least room is left that still takes it; where that fails, every
placement is tried by branch and bound. Tables are cut (column-wise) or spread (row-wise) one after
the other, the largest first, until the rest can be packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stepsight.constants import area
from stepsight.sharding.pricing.loads import EXTRAS, MEMORY, PartCosts, TablePart
from stepsight.sharding.search.draft import Draft
from stepsight.sharding.search.rules import Rules, TableSharding, holders
from stepsight.tables.plan import ROW_WISE

_CONSTANTS = area("sharding")
NODES = _CONSTANTS.whole("NODES")

SLACK = 1e-9
"""Rounding allowance, as a share of a rank's room."""

Piece = tuple[int, int]
"""A table and so many of its columns."""


def packed(costs: PartCosts, rules: Rules) -> Draft | None:
    """A draft that fits, or None where none was found."""
    for pieces, spread in _ways(costs, rules):
        room = np.full(costs.ranks, rules.memory_bytes)
        for choice in spread:
            for rank, (start, stop) in holders(costs, choice):
                room[rank] -= _spread_bytes(costs, choice, stop - start)
        sizes = [_bytes(costs, piece) for piece in pieces]
        placed = place(sizes, room.tolist())
        if placed is not None:
            return _draft(costs, pieces, placed, spread)
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
    left = sorted(pieces, key=lambda piece: -_bytes(costs, piece))
    while left:
        ways = [s for s in rules.spreads(costs, left[0][0]) if s.kind == ROW_WISE]
        if not ways:
            return
        spread = [*spread, ways[0]]
        left = left[1:]
        yield left, spread


def _halved(costs: PartCosts, rules: Rules, pieces: Sequence[Piece]) -> list[Piece] | None:
    """The pieces with the largest one that may be cut in two halves."""
    for piece in sorted(pieces, key=lambda p: (-_bytes(costs, p), p)):
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
    """Depth first, the largest piece first; ranks with equal room are alike, so one of them is tried."""
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


def _draft(
    costs: PartCosts, pieces: Sequence[Piece], placed: Sequence[int], spread: Sequence[TableSharding]
) -> Draft:
    draft = Draft(costs)
    for choice in spread:
        draft.apply(choice)
    for (table, width), rank in zip(pieces, placed, strict=True):
        draft.add(table, rank, width)
    return draft


def _bytes(costs: PartCosts, piece: Piece) -> float:
    table, width = piece
    return float(costs.column_part(table, width)[:, MEMORY - EXTRAS].max())


def _spread_bytes(costs: PartCosts, choice: TableSharding, height: int) -> float:
    part = TablePart(choice.table, costs.tables[choice.table].dim, height)
    return float(costs.matrix_row(part)[:, MEMORY - EXTRAS].max())
