"""The small changes worth pricing: around the ranks that hold the step up."""

from __future__ import annotations

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.pricing.loads import COLUMNS, EXTRAS, LOOKUPS, MEMORY
from stepsight.sharding.search.draft import Draft, Move
from stepsight.sharding.search.rules import Rules, TableSharding
from stepsight.tables.plan import DATA_PARALLEL, TABLE_WISE

_CONSTANTS = area("sharding")
COLD_RANKS = _CONSTANTS.whole("COLD_RANKS")
MOVES = _CONSTANTS.whole("MOVES")
SPREADS = _CONSTANTS.whole("SPREADS")
SWAPS = _CONSTANTS.whole("SWAPS")


def changes(draft: Draft, rules: Rules, exchange_us: float) -> list[Move]:
    """Moves, swaps and splits that would relieve the busiest rank of each resource."""
    loads = draft.loads()
    forward, backward = (us[0].mean(axis=0) for us in (loads.forward_us, loads.backward_us))
    columns = draft.sums[0, :, COLUMNS - EXTRAS]
    together = forward + backward + 2 * exchange_us * columns
    found: list[Move] = []
    lookups = draft.sums[0, :, LOOKUPS - EXTRAS]
    for busy in (together, forward, backward, columns, lookups, _overflow(draft, rules)):
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


def _overflow(draft: Draft, rules: Rules) -> FloatArray:
    return np.maximum(draft.sums[0, :, MEMORY - EXTRAS] - rules.memory_bytes, 0.0)
