"""A plan being worked on: parts on ranks, their summed costs, and the changes worth pricing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray, IntArray
from stepsight.sharding.loads import COLUMNS, EXTRAS, LOOKUPS, MEMORY, Loads, PartCosts
from stepsight.sharding.rules import Rules, TableSharding, holders
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, TABLE_ROW_WISE, TABLE_WISE, Plan, Shard

C = area("sharding")
COLD_RANKS = C.whole("COLD_RANKS")
MOVES = C.whole("MOVES")
SPREADS = C.whole("SPREADS")
SWAPS = C.whole("SWAPS")


@dataclass(frozen=True, slots=True)
class Move:
    """Two ranks exchange columns: ``leave`` and ``come`` are (table, width) at the first rank.

    A move leaves one and brings none, a swap does both, a split leaves part of a width.
    """

    from_rank: int
    to_rank: int
    leave: tuple[int, int]
    come: tuple[int, int] | None = None


class Draft:
    """Column widths of tables on ranks, tables spread over many ranks, and the sums of both."""

    def __init__(self, costs: PartCosts) -> None:
        self.costs = costs
        self.widths: list[dict[int, int]] = [{} for _ in range(costs.ranks)]
        self.spread: dict[int, TableSharding] = {}
        columns = self.costs.column_part(0, costs.tables[0].dim).shape[-1]
        self.sums = np.zeros((len(costs.days), costs.ranks, columns))

    @classmethod
    def of(cls, costs: PartCosts, plan: Plan) -> Draft:
        """The draft of a plan; row-wise tables are taken as spread evenly."""
        draft = cls(costs)
        for shard in plan.shards:
            table = costs.index_of[shard.table]
            if shard.kind in (TABLE_WISE, COLUMN_WISE):
                draft.add(table, shard.rank, shard.width)
            elif table not in draft.spread:
                node = shard.rank // costs.ranks_per_node
                draft.apply(TableSharding(table, shard.kind, node if shard.kind == TABLE_ROW_WISE else 0))
        return draft

    def copy(self) -> Draft:
        twin = object.__new__(Draft)
        twin.costs, twin.spread = self.costs, dict(self.spread)
        twin.widths = [dict(held) for held in self.widths]
        twin.sums = self.sums.copy()
        return twin

    def add(self, table: int, rank: int, width: int) -> None:
        """Put columns on a rank (next to those of the same table that it holds)."""
        held = self.widths[rank].get(table, 0)
        self._set(table, rank, held + width)

    def remove(self, table: int, rank: int, width: int) -> None:
        """Take columns off a rank."""
        self._set(table, rank, self.widths[rank][table] - width)

    def apply(self, change: Move | TableSharding) -> None:
        """Carry a change out."""
        if isinstance(change, Move):
            self._carry(change.leave, change.from_rank, change.to_rank)
            if change.come:
                self._carry(change.come, change.to_rank, change.from_rank)
            return
        for rank, held in enumerate(self.widths):
            if change.table in held:
                self.remove(change.table, rank, held[change.table])
        before = self.spread.pop(change.table, None)
        if before:
            self.sums -= self.spread_sums(before)
            np.maximum(self.sums, 0.0, out=self.sums)
        if change.kind == TABLE_WISE:
            self.add(change.table, change.node_or_rank, self.costs.tables[change.table].dim)
        elif change.kind == COLUMN_WISE:
            self._deal(change.table, change.node_or_rank)
        else:
            self.spread[change.table] = change
            self.sums += self.spread_sums(change)

    def loads(self) -> Loads:
        """The loads of this one draft."""
        return self.costs.times(self.sums[None])

    def loads_after(self, changes: Sequence[Move]) -> Loads:
        """The loads that each change would lead to."""
        now = self.loads()
        count = len(changes)
        first = np.array([c.from_rank for c in changes])
        second = np.array([c.to_rank for c in changes])
        delta = np.stack([self._delta(c) for c in changes])
        lost, won = (self._times_of(ranks, delta[:, :, side]) for side, ranks in enumerate((first, second)))
        which = np.arange(count)

        def after(name: str) -> FloatArray:
            values = np.repeat(getattr(now, name), count, axis=0)
            values[which, :, first] = getattr(lost, name)[..., 0]
            values[which, :, second] = getattr(won, name)[..., 0]
            return values

        return Loads(*(after(name) for name in Loads.__slots__))

    def loads_spread(self, changes: Sequence[TableSharding]) -> Loads:
        """The loads after each table's spreading."""
        sums = np.repeat(self.sums[None], len(changes), axis=0)
        for k, change in enumerate(changes):
            twin = self.copy()
            twin.apply(change)
            sums[k] = twin.sums
        return self.costs.times(sums)

    def plan(self, name: str) -> Plan:
        """The plan: columns are dealt out in the order of ranks."""
        dealt = dict.fromkeys(range(len(self.costs.tables)), 0)
        shards: list[Shard] = []
        for rank, held in enumerate(self.widths):
            for table, width in held.items():
                whole = self.costs.tables[table]
                kind = TABLE_WISE if width == whole.dim else COLUMN_WISE
                start = dealt[table]
                dealt[table] = start + width
                shards.append(Shard(whole.name, rank, (start, start + width), (0, whole.rows), kind))
        for change in self.spread.values():
            shards += self._spread_shards(change)
        order = self.costs.index_of
        return Plan(self.costs.ranks, tuple(sorted(shards, key=lambda s: (order[s.table], s.rank))), name)

    def spread_sums(self, change: TableSharding) -> FloatArray:
        """What a spread table adds to every rank, (days, ranks, columns)."""
        added = np.zeros_like(self.sums)
        table = self.costs.tables[change.table]
        by_height: dict[int, list[int]] = {}
        for rank, (start, stop) in holders(self.costs, change):
            by_height.setdefault(stop - start, []).append(rank)
        for height, ranks in by_height.items():  # most parts are of the same height
            part = self.costs.part(change.table, table.dim, height, change.kind)
            added[:, ranks] = self.costs.matrix_row(part)[:, None]
        return added

    def _spread_shards(self, change: TableSharding) -> list[Shard]:
        table = self.costs.tables[change.table]
        return [
            Shard(table.name, rank, (0, table.dim), rows, change.kind)
            for rank, rows in holders(self.costs, change)
        ]

    def _deal(self, table: int, parts: int) -> None:
        """Equal column parts on the ranks that have the fewest columns to send."""
        dim = self.costs.tables[table].dim
        edges = [round(i * dim / parts / 4) * 4 for i in range(parts)] + [dim]
        ranks = np.argsort(self.sums[0, :, COLUMNS - EXTRAS], kind="stable")[:parts].tolist()
        for rank, (start, stop) in zip(ranks, pairwise(edges), strict=True):
            self.add(table, rank, stop - start)

    def _set(self, table: int, rank: int, width: int) -> None:
        held = self.widths[rank]
        if table in held:
            self.sums[:, rank] -= self.costs.column_part(table, held[table])
        if width:
            held[table] = width
            self.sums[:, rank] += self.costs.column_part(table, width)
        else:
            held.pop(table, None)
        np.maximum(self.sums[:, rank], 0.0, out=self.sums[:, rank])

    def _carry(self, part: tuple[int, int], source: int, target: int) -> None:
        table, width = part
        self.remove(table, source, width)
        self.add(table, target, width)

    def _times_of(self, ranks: IntArray, added: FloatArray) -> Loads:
        """Loads of one rank a change, (changes, days, 1); a difference of sums may round below zero."""
        sums = self.sums[:, ranks].transpose(1, 0, 2) + added
        return self.costs.times(np.maximum(sums, 0.0)[:, :, None])

    def _delta(self, change: Move) -> FloatArray:
        """What the change adds to its two ranks, (days, 2, columns)."""
        delta = np.zeros((self.sums.shape[0], 2, self.sums.shape[2]))
        moved = [(change.leave, change.from_rank, change.to_rank, 0)]
        if change.come:
            moved.append((change.come, change.to_rank, change.from_rank, 1))
        for (table, width), source, target, side in moved:
            had, have = self.widths[source][table], self.widths[target].get(table, 0)
            delta[:, side] -= self.costs.column_part(table, had)
            if had > width:
                delta[:, side] += self.costs.column_part(table, had - width)
            delta[:, 1 - side] += self.costs.column_part(table, have + width)
            if have:
                delta[:, 1 - side] -= self.costs.column_part(table, have)
        return delta


def changes(draft: Draft, rules: Rules, exchange_us: float) -> list[Move]:
    """Moves, swaps and splits that would relieve the busiest rank of each resource."""
    loads = draft.loads()
    forward, backward = (us[0].mean(axis=0) for us in (loads.forward_us, loads.backward_us))
    columns = draft.sums[0, :, COLUMNS - EXTRAS]
    together = forward + backward + 2 * exchange_us * columns
    found: list[Move] = []
    lookups = draft.sums[0, :, LOOKUPS - EXTRAS]
    overflow = np.maximum(draft.sums[0, :, MEMORY - EXTRAS] - rules.memory_bytes, 0.0)
    for busy in (together, forward, backward, columns, lookups, overflow):
        hot = int(np.argmax(busy))
        if busy[hot] <= 0 or not draft.widths[hot]:
            continue
        cold = [int(r) for r in np.argsort(busy, kind="stable")[:COLD_RANKS] if int(r) != hot]
        if cold:
            sizes = _Sizes(draft, busy)
            found += _moves(draft, rules, sizes, hot, cold)
            found += _swaps(draft, sizes, hot, cold)
    return list(dict.fromkeys(found))


def spreads(draft: Draft, rules: Rules, exchange_us: float) -> list[TableSharding]:
    """The busiest rank's largest tables over many ranks, small ones replicated, and the way back."""
    loads = draft.loads()
    busy = (loads.forward_us + loads.backward_us)[0].mean(axis=0)
    hot = int(np.argmax(busy + 2 * exchange_us * draft.sums[0, :, COLUMNS - EXTRAS]))
    sizes = _Sizes(draft, busy)
    held = sorted(draft.widths[hot], key=lambda t: -sizes.of(hot, t))
    found: list[TableSharding] = []
    for table in held[: SPREADS // 2]:
        found += [s for s in rules.spreads(draft.costs, table) if s.kind != DATA_PARALLEL]
        found += rules.column_parts(draft.costs, table)
    found = found[: 2 * SPREADS]
    for table in sorted(held, key=lambda t: draft.costs.tables[t].weight_bytes)[:SPREADS]:
        found += [s for s in rules.spreads(draft.costs, table) if s.kind == DATA_PARALLEL]
    cold = int(np.argmin(busy))
    back = sorted(draft.spread, key=lambda t: -sizes.width(t, draft.costs.tables[t].dim))
    for table in back[: SPREADS // 2]:
        found += [TableSharding(table, TABLE_WISE, cold), *rules.column_parts(draft.costs, table)]
    return found


def shaken(draft: Draft, rules: Rules, rng: np.random.Generator) -> Draft:
    """A copy with a few random parts elsewhere, half of them from the busiest rank."""
    twin = draft.copy()
    loads = twin.loads()
    busy = (loads.forward_us + loads.backward_us)[0].mean(axis=0)
    for kick in range(2 + int(rng.integers(0, 4))):
        if twin.spread and rng.random() < 0.5:
            table = list(twin.spread)[int(rng.integers(len(twin.spread)))]
            options = rules.column_parts(twin.costs, table)
            twin.apply(
                options[int(rng.integers(len(options)))] if options else TableSharding(table, TABLE_WISE)
            )
            continue
        source = int(np.argmax(busy)) if kick % 2 == 0 else int(rng.integers(twin.costs.ranks))
        held = list(twin.widths[source])
        if not held:
            continue
        table = held[int(rng.integers(len(held)))]
        width = twin.widths[source][table]
        cut = rules.halves(width)
        if cut and rng.random() < 0.25:
            width = cut[0]
        target = int(rng.integers(twin.costs.ranks))
        if target != source:
            twin.apply(Move(source, target, (table, width)))
    return twin


class _Sizes:
    """About how much of a rank's load each of its parts is."""

    def __init__(self, draft: Draft, busy: FloatArray) -> None:
        self.draft = draft
        self.busy = busy
        tables = draft.costs.tables
        whole = draft.costs.matrix[: len(tables)].mean(axis=1) @ self._scale()
        self.per_column = (whole / [table.dim for table in tables]).tolist()

    def of(self, rank: int, table: int) -> float:
        return self.width(table, self.draft.widths[rank][table])

    def width(self, table: int, width: int) -> float:
        return float(self.per_column[table] * width)

    def _scale(self) -> FloatArray:
        """Load per unit of each cost column: the total load over the total of the columns."""
        totals = self.draft.sums.mean(axis=0).sum(axis=0)
        used = totals[:-EXTRAS] > 0
        scale = np.zeros(len(totals))
        scale[:-EXTRAS][used] = float(self.busy.sum()) / totals[:-EXTRAS][used] / max(int(used.sum()), 1)
        return scale


def _moves(draft: Draft, rules: Rules, sizes: _Sizes, hot: int, cold: list[int]) -> list[Move]:
    """Parts of the hot rank, whole or half, nearest in size to half of the gap."""
    options: list[tuple[float, Move]] = []
    for rank in cold:
        wanted = (sizes.busy[hot] - sizes.busy[rank]) / 2
        for table, width in draft.widths[hot].items():
            for leaving in {width, *(rules.halves(width) or ())}:
                miss = abs(sizes.width(table, leaving) - wanted)
                options.append((miss, Move(hot, rank, (table, leaving))))
    return _nearest(options, MOVES)


def _swaps(draft: Draft, sizes: _Sizes, hot: int, cold: list[int]) -> list[Move]:
    """Pairs whose difference is nearest to half of the gap."""
    options: list[tuple[float, Move]] = []
    mine = [(table, width, sizes.width(table, width)) for table, width in draft.widths[hot].items()]
    own = np.array([size for _, _, size in mine])
    for rank in cold:
        theirs = list(draft.widths[rank].items())
        if not theirs:
            continue
        other = np.array([sizes.width(table, width) for table, width in theirs])
        wanted = (sizes.busy[hot] - sizes.busy[rank]) / 2
        miss = np.abs(own[:, None] - other[None, :] - wanted)
        for flat in np.argsort(miss, axis=None, kind="stable")[: 2 * SWAPS // len(cold)]:
            i, j = divmod(int(flat), len(theirs))
            if mine[i][0] != theirs[j][0]:
                options.append((float(miss[i, j]), Move(hot, rank, mine[i][:2], theirs[j])))
    return _nearest(options, SWAPS)


def _nearest(options: list[tuple[float, Move]], count: int) -> list[Move]:
    options.sort(key=lambda option: option[0])
    return [change for _, change in options[:count]]
