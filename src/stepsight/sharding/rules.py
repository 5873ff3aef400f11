"""What a plan may do, and the least step time that any such plan could reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.sharding.loads import EXTRAS, GRADIENT, LOOKUPS, Loads, PartCosts, TablePart
from stepsight.tables.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    KINDS,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    part_bytes,
)

C = area("sharding")
LEAST_WIDTH = C.whole("LEAST_WIDTH")
REPLICATED_BYTES = C.whole("REPLICATED_BYTES")
ROWS_PER_RANK = C.whole("ROWS_PER_RANK")

USUAL_KINDS = KINDS
"""What a search may use unless kinds are named: all that a stack supports."""


@dataclass(frozen=True, slots=True)
class TableSharding:
    """A table goes over several ranks at once.

    ``node_or_rank`` is the node of a table_row_wise table, the rank of a table_wise one (which
    so comes back to one rank), and the number of parts of a column_wise one.
    """

    table: int
    kind: str
    node_or_rank: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a search. ``memory_bytes`` is what tables may take on each rank; whole tables on one rank
    are always allowed, named or not."""

    memory_bytes: float = float("inf")
    kinds: tuple[str, ...] = USUAL_KINDS
    least_width: int = LEAST_WIDTH

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InputError("kinds", f"unknown: {', '.join(unknown)}", f"name some of {', '.join(KINDS)}")

    def combinations(self, costs: PartCosts) -> list[Rules]:
        """The same rules with every subset of the kinds that some table may use, smaller ones first."""
        tables = range(len(costs.tables))
        ways = {s.kind for t in tables for s in (*self.spreads(costs, t), *self.column_parts(costs, t))}
        usable = [kind for kind in KINDS if kind in ways]
        return [
            replace(self, kinds=(TABLE_WISE, *some))
            for count in range(len(usable) + 1)
            for some in combinations(usable, count)
        ]

    def halves(self, width: int) -> tuple[int, int] | None:
        """The two widths that a column part of this width may be cut into."""
        if COLUMN_WISE not in self.kinds or width < 2 * self.least_width:
            return None
        half = width // 2 // 4 * 4
        return (half, width - half) if half >= self.least_width else None

    def column_parts(self, costs: PartCosts, table: int) -> list[TableSharding]:
        """2, 4, 8 … equal column parts, as many as the width and the ranks allow."""
        found: list[TableSharding] = []
        parts, width = 2, self.halves(costs.tables[table].dim)
        while width and parts <= costs.ranks:
            found.append(TableSharding(table, COLUMN_WISE, parts))
            parts, width = 2 * parts, self.halves(width[0])
        return found

    def spreads(self, costs: PartCosts, table: int) -> list[TableSharding]:
        """The ways in which this table may go over many ranks."""
        whole, ranks = costs.tables[table], costs.ranks
        found: list[TableSharding] = []
        if ranks == 1:
            return found
        if ROW_WISE in self.kinds and whole.rows >= ROWS_PER_RANK * ranks:
            found.append(TableSharding(table, ROW_WISE))
        in_node = costs.ranks_per_node
        if TABLE_ROW_WISE in self.kinds and 1 < in_node < ranks and whole.rows >= ROWS_PER_RANK * in_node:
            found += [TableSharding(table, TABLE_ROW_WISE, node) for node in range(ranks // in_node)]
        if DATA_PARALLEL in self.kinds and whole.weight_bytes <= REPLICATED_BYTES:
            found.append(TableSharding(table, DATA_PARALLEL))
        return found


def holders(costs: PartCosts, spread: TableSharding) -> list[tuple[int, tuple[int, int]]]:
    """The ranks of a spread table and the rows of each."""
    rows, ranks = costs.tables[spread.table].rows, costs.ranks
    if spread.kind == DATA_PARALLEL:
        return [(rank, (0, rows)) for rank in range(ranks)]
    first, count = 0, ranks
    if spread.kind == TABLE_ROW_WISE:
        count = costs.ranks_per_node
        first = spread.node_or_rank * count
    # Equal blocks, the last ones shorter, as TorchRec cuts a row-wise table.
    block = -(-rows // count)
    edges = [(min(rows, i * block), min(rows, (i + 1) * block)) for i in range(count)]
    return [(first + i, edge) for i, edge in enumerate(edges) if edge[1] > edge[0]]


def check_fits(costs: PartCosts, rules: Rules, usable_bytes: float, gpus: int, hosted: bool) -> None:
    """Raise where no plan at all could fit, saying by how much and what would. ``usable_bytes``: of each GPU,
    of which there are ``gpus``; ``hosted``: the stack can keep tables in host memory."""
    if not np.isfinite(rules.memory_bytes):
        return
    sizes = [part_bytes(t, t.dim, t.rows, costs.optimizer) for t in costs.tables]
    total, room = sum(sizes), rules.memory_bytes * costs.ranks
    if total > room:
        ranks = int(np.ceil(total / rules.memory_bytes))
        ranks = next((n for n in range(ranks, gpus + 1) if costs.batch % n == 0), ranks)
        how = f": --set parallel.ranks={ranks}" if ranks <= gpus else ""
        raise InputError(
            "tables",
            f"weights and optimizer state ({costs.optimizer}) take {total / 1e9:.1f} GB, {costs.ranks} × "
            f"{usable_bytes / 1e9:.1f} GB usable leave {room / 1e9:.1f} GB for them: "
            f"{(total - room) / 1e9:.1f} GB too much",
            f"it would fit on {ranks} such ranks{how}" + _smaller(costs, sizes, room, hosted),
        )


def _smaller(costs: PartCosts, sizes: Sequence[float], room: float, hosted: bool) -> str:
    """What else would make the tables fit: fp16 rows, an optimizer without state, host memory."""
    hints = []
    weights = sum(t.weight_bytes for t in costs.tables)
    halved = sum(t.weight_bytes / 2 for t in costs.tables if t.dtype == "fp32")
    if halved and sum(sizes) - halved <= room:
        hints.append("with fp16 rows")
    if weights < sum(sizes) and weights <= room:
        hints.append("with sgd, which keeps no state")
    if hosted:
        hints.append("with --host-memory, which keeps some of them there")
    return "".join(f", or {hint}" for hint in hints)


BUDGETS = 65
"""Amounts of gradients, and of copied indices, for which the bound is taken: closer together where small."""


def least_loads(costs: PartCosts, rules: Rules) -> Loads:
    """The loads of perfectly even plans, one for each pair of amounts: no plan takes less time than the
    fastest of them, since all work is shared out evenly and nothing is extra.

    The step is monotone in every load, and where a kernel's time is convex in what it does, the slowest rank
    takes at least as long as one that does the mean. What it is concave in (the longest bag, the passes of a
    sort) is left out: one rank may have all of it and another all of the rest. Each column of a table's costs
    is taken at its least over the ways of sharding the table, so no plan that keeps the rules can lie below.
    Two ways save only what they pay for: replicated tables leave their gradients to be reduced, and tables
    cut by columns have their indices copied to every part. The bound is the least over all amounts that are
    paid.
    """
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
