"""Tables in host memory: what crosses the bus (FBGEMM's managed and managed-caching tables).

Without a cache every distinct row of a batch is read across the bus in the forward pass, and read and
written in the update. With one, rows that are missing in it are fetched before the lookup, and as many
changed rows are written back to make room; the update stays on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.tables.plan import Shard
from stepsight.tables.table import DEVICE, UVM, Table

TIMES_THROUGH = 100.0
"""Lookups over which the cache's hit rate is taken, in rows of the table: long enough that the cache is full
of the rows that stay, and that the rare ones have been asked for and dropped again."""


def transfers(
    tables: Mapping[str, Table], shards: Sequence[Shard], batch: int, optimizer: str
) -> tuple[list[Kernel], list[Kernel]]:
    """Copies before the lookup, and before its backward, for one rank's shards."""
    read = rewritten = fetched = 0.0
    for shard in shards:
        table = tables[shard.table]
        if table.placement == DEVICE:
            continue
        lookups = batch * table.lookups * shard.height / table.rows
        row = shard.width * dtype_bytes(table.dtype)
        state = table.state_bytes(optimizer, 1, shard.width)
        stats = table.indices.stats(shard.height, lookups)
        if table.placement == UVM:
            read += stats.unique_rows * row
            rewritten += stats.unique_rows * (row + state)
        else:
            fetched += _missing(table, shard, lookups) * (row + state)
    before = [_copy("copy_h2d", "uvm rows", read), _copy("copy_h2d", "cache fill", fetched),
              _copy("copy_d2h", "cache eviction", fetched)]  # fmt: skip
    after = [_copy("copy_h2d", "uvm rows", rewritten), _copy("copy_d2h", "uvm update", rewritten)]
    return [k for k in before if k], [k for k in after if k]


def _missing(table: Table, shard: Shard, lookups: float) -> float:
    """Rows of a batch that the cache does not hold."""
    capacity = table.cache_share * shard.height
    if table.indices.kind == "file":  # its rows' popularity beyond one batch is not known
        return table.indices.stats(shard.height, lookups).unique_rows * (1 - table.cache_share)
    steady = table.indices.stats(shard.height, max(lookups, TIMES_THROUGH * shard.height))
    return lookups * (1 - float(steady.hit_rate(capacity, replay=True)))


def _copy(family: str, name: str, size: float) -> Kernel | None:
    return Kernel.of(family, "fp32", operator=name, bytes=size) if size > 0 else None
