"""An exact LRU cache, lookup by lookup: the oracle that hit-rate estimates are held against."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


def lru_hit_rate(stream: Iterable[int], capacity_rows: int, *, replay: bool = False) -> float:
    """Share of the lookups that a cache of this many rows serves, cold or right after the same stream."""
    lookups = list(stream)
    cache: OrderedDict[int, None] = OrderedDict()
    if replay:
        _hits(lookups, capacity_rows, cache)
    return _hits(lookups, capacity_rows, cache) / max(len(lookups), 1)


def _hits(lookups: list[int], capacity_rows: int, cache: OrderedDict[int, None]) -> int:
    hits = 0
    for row in lookups:
        if row in cache:
            cache.move_to_end(row)
            hits += 1
        else:
            cache[row] = None
            if len(cache) > capacity_rows:
                cache.popitem(last=False)
    return hits
