"""The least step time that any plan could reach: all work shared out evenly, nothing extra.

The step is monotone in every load, and where a kernel's time is convex in what it does, the slowest rank
takes at least as long as one that does the mean. What it is concave in (the longest bag, the passes of a
sort) is left out: one rank may have all of it and another all of the rest. Each column of a table's costs is
taken at its least over the ways of sharding the table, so no plan that keeps the rules can lie below. Two
ways save only what they pay for: replicated tables leave their gradients to be reduced, and tables cut by
columns have their indices copied to every part. The bound is the least over all amounts that are paid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.sharding.loads import EXTRAS, GRADIENT, LOOKUPS, Loads, PartCosts, TablePart
from stepsight.sharding.rules import Rules, holders

BUDGETS = 65
"""Amounts of gradients, and of copied indices, for which the bound is taken: closer together where small."""


def least_loads(costs: PartCosts, rules: Rules) -> Loads:
    """The loads of perfectly even plans, one for each pair of amounts: no plan takes less time than the
    fastest of them."""
    tables = range(len(costs.tables))
    spread = [[(costs.row(part), count) for part, count in _spreads(costs, rules, table)] for table in tables]
    cuts = [
        [(costs.row(part), count) for part, count in _column_cuts(costs, rules, table)] for table in tables
    ]
    copies = [
        costs.row(TablePart(table, whole.dim, whole.rows, replicated=True))
        if any(part.replicated for part, _ in _spreads(costs, rules, table))
        else None
        for table, whole in enumerate(costs.tables)
    ]
    matrix = costs.matrix  # with the rows of all of them
    even = np.zeros(matrix.shape[1:])
    replicated: list[FloatArray] = []
    narrowed: list[FloatArray] = []
    for table in tables:
        own = [matrix[row] * count for row, count in spread[table] if row != copies[table]]
        least = np.minimum.reduce([matrix[table], *own])
        even += least
        if (row := copies[table]) is not None:
            replicated.append(least - matrix[row] * costs.ranks)
        before = least
        for row, count in cuts[table]:
            after = matrix[row] * count
            narrowed.append(before - after)
            before = after
    ends = [_ends(replicated, GRADIENT), _ends(narrowed, LOOKUPS)]
    saved = [_savings(items, column, end) for items, column, end in zip(
        (replicated, narrowed), (GRADIENT, LOOKUPS), ends, strict=True)]  # fmt: skip
    sums = even - saved[0][:, None] - saved[1][None]
    for axis, (column, end) in enumerate(zip((GRADIENT, LOOKUPS), ends, strict=True)):
        paid = np.concatenate([[0.0], end[:-1]])
        shape = [1, 1]
        shape[axis] = -1
        sums[..., column - EXTRAS] += paid.reshape(*shape, 1)
    flat = np.maximum(sums, 0.0).reshape(-1, *even.shape)
    shared = np.repeat((flat / costs.ranks)[:, :, None, :], costs.ranks, axis=2)
    return costs.times(costs.without_concave(shared))


def _ends(items: Sequence[FloatArray], column: int) -> FloatArray:
    """Upper ends of the intervals of what all items together pay; the first interval is nothing at all."""
    total = sum(max(-float(item[0, column - EXTRAS]), 0.0) for item in items)
    return total * np.linspace(0.0, 1.0, BUDGETS) ** 2 if total > 0 else np.zeros(1)


def _savings(items: Sequence[FloatArray], column: int, ends: FloatArray) -> FloatArray:
    """The most that items which pay up to each end save of every other column, (ends, days, columns): a
    knapsack for each column by itself, the last item taken in part."""
    if not items:
        return np.zeros((1, 1, 1))
    saved = np.array(items)
    paid = np.maximum(-saved[:, 0, column - EXTRAS], 0.0)
    most = np.zeros((len(ends), *saved.shape[1:]))
    for day, other in np.ndindex(*saved.shape[1:]):
        gains = np.maximum(saved[:, day, other], 0.0)
        order = np.argsort(-gains / np.maximum(paid, 1e-9), kind="stable")
        spent, gained = (np.concatenate([[0.0], np.cumsum(some[order])]) for some in (paid, gains))
        # What costs nothing is saved at no price: of equal abscissae the last one counts.
        most[:, day, other] = gained[np.searchsorted(spent, ends, side="right") - 1]
        after = np.minimum(np.searchsorted(spent, ends, side="right"), len(spent) - 1)
        step = np.maximum(spent[after] - spent[after - 1], 1e-9)
        part = np.clip((ends - spent[after - 1]) / step, 0.0, 1.0) * (gained[after] - gained[after - 1])
        most[:, day, other] = np.maximum(most[:, day, other], gained[after - 1] + part)
    return most


def _column_cuts(costs: PartCosts, rules: Rules, table: int) -> Iterable[tuple[TablePart, int]]:
    """Halves, quarters … of the table's columns: the narrowest part, and how many there are."""
    whole = costs.tables[table]
    width, parts = whole.dim, 1
    while cut := rules.halves(width):
        width, parts = cut[0], 2 * parts
        yield TablePart(table, width, whole.rows), parts


def _spreads(costs: PartCosts, rules: Rules, table: int) -> Iterable[tuple[TablePart, int]]:
    """Each way that the rules allow of spreading the table: its smallest part, and how many there are."""
    whole = costs.tables[table]
    for spread in rules.spreads(costs, table):
        if spread.node_or_rank == 0:
            held = holders(costs, spread)
            rows = min(stop - start for _, (start, stop) in held)
            yield costs.part(table, whole.dim, rows, spread.kind), len(held)
