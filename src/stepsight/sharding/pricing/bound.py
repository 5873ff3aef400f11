"""The least step time that any plan could reach: all work shared out evenly, nothing extra.

The step is monotone in every load, and where a kernel's time is convex in what it does, the slowest rank
takes at least as long as one that does the mean. What it is concave in (the longest bag, the passes of a
sort) is left out: one rank may have all of it and another all of the rest. Each column of a table's costs is
taken at its least over the ways of cutting the table, so no plan that keeps the rules can lie below.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepsight.sharding.pricing.loads import Loads, PartCosts, TablePart
from stepsight.sharding.search.rules import Rules, holders


def least_loads(costs: PartCosts, rules: Rules) -> Loads:
    """The loads of a perfectly even plan, for one plan."""
    ways = [
        [(costs.row(part), count) for part, count in _ways(costs, rules, table)]
        for table in range(len(costs.tables))
    ]
    matrix = costs.matrix
    least = [np.minimum.reduce([count * matrix[row] for row, count in cuts]) for cuts in ways]
    even = np.repeat((np.sum(least, axis=0) / costs.ranks)[:, None, :], costs.ranks, axis=1)
    return costs.times(costs.without_concave(even[None]))


def _ways(costs: PartCosts, rules: Rules, table: int) -> Iterable[tuple[TablePart, int]]:
    """Each way that the rules allow of cutting the table: its smallest part, and how many there are."""
    whole = costs.tables[table]
    yield TablePart(table, whole.dim, whole.rows), 1
    width, parts = whole.dim, 1
    while cut := rules.halves(width):
        width, parts = cut[0], 2 * parts
        yield TablePart(table, width, whole.rows), parts
    for spread in rules.spreads(costs, table):
        if spread.node_or_rank == 0:
            held = holders(costs, spread)
            rows = min(stop - start for _, (start, stop) in held)
            yield costs.part(table, whole.dim, rows, spread.kind), len(held)
