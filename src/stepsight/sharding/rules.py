"""What a plan may do: which ways of sharding, how narrow, how much memory a rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.sharding.loads import PartCosts
from stepsight.tables.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    KINDS,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    part_bytes,
)

_CONSTANTS = area("sharding")
LEAST_WIDTH = _CONSTANTS.whole("LEAST_WIDTH")
REPLICATED_BYTES = _CONSTANTS.whole("REPLICATED_BYTES")
ROWS_PER_RANK = _CONSTANTS.whole("ROWS_PER_RANK")

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


def check_fits(costs: PartCosts, rules: Rules, gpu_memory: str) -> None:
    """Raise where no plan at all could fit, saying by how much and what would."""
    if not np.isfinite(rules.memory_bytes):
        return
    sizes = [part_bytes(t, t.dim, t.rows, costs.optimizer) for t in costs.tables]
    total, room = sum(sizes), rules.memory_bytes * costs.ranks
    if total > room:
        ranks = int(np.ceil(total / rules.memory_bytes))
        raise InputError(
            "tables",
            f"weights and optimizer state ({costs.optimizer}) take {total / 1e9:.1f} GB, {costs.ranks} × "
            f"{gpu_memory} leave {room / 1e9:.1f} GB: {(total - room) / 1e9:.1f} GB too much",
            f"it would fit on {ranks} such ranks" + _smaller(costs, sizes, room),
        )


def _smaller(costs: PartCosts, sizes: Sequence[float], room: float) -> str:
    """What else would make the tables fit: fp16 rows, an optimizer without state, host memory."""
    hints = []
    weights = sum(t.weight_bytes for t in costs.tables)
    halved = sum(t.weight_bytes / 2 for t in costs.tables if t.dtype == "fp32")
    if halved and sum(sizes) - halved <= room:
        hints.append("with fp16 rows")
    if weights < sum(sizes) and weights <= room:
        hints.append("with sgd, which keeps no state")
    hints.append("with --host-memory, which keeps some of them there")
    return "".join(f", or {hint}" for hint in hints)
