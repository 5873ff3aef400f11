"""A plan: which part of which table lives on which rank.

A plan is a small JSON file. Every weight lives on exactly one rank, except in a
data-parallel table, which every rank holds whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.inputs import read_bytes
from stepsight.tables.table import CACHE_SHARE, DEVICE, Table, row_bytes

TABLE_WISE = "table_wise"
COLUMN_WISE = "column_wise"
ROW_WISE = "row_wise"
TABLE_ROW_WISE = "table_row_wise"
DATA_PARALLEL = "data_parallel"
KINDS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL)
"""Whole on one rank; columns over ranks; rows over ranks; rows over the ranks of one node; on every rank."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangle of one table on one rank: ``columns`` and ``rows`` are half-open ranges."""

    table: str
    rank: int
    columns: tuple[int, int]
    rows: tuple[int, int]
    kind: str = TABLE_WISE

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def height(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(frozen=True, slots=True)
class Tier:
    """The memory that a table's rows lie in, and the share of them that a cache on the device holds."""

    table: str
    placement: str
    cache_share: float = CACHE_SHARE


@dataclass(frozen=True)
class Plan:
    """All shards of all tables over ``ranks`` ranks; ``sharder`` says who made it. ``tiers``: of tables whose
    rows do not lie on the devices; of others the workload says it."""

    ranks: int
    shards: tuple[Shard, ...]
    sharder: str = ""
    tiers: tuple[Tier, ...] = ()

    @classmethod
    def table_wise(
        cls, tables: Sequence[Table], rank_of: Sequence[int], ranks: int, sharder: str = ""
    ) -> Plan:
        """Each table whole on the rank named for it."""
        shards = (
            Shard(table.name, int(rank), (0, table.dim), (0, table.rows))
            for table, rank in zip(tables, rank_of, strict=True)
        )
        return cls(ranks, tuple(shards), sharder)

    def on_rank(self, rank: int) -> tuple[Shard, ...]:
        return self._by_rank.get(rank, ())

    @cached_property
    def _by_rank(self) -> dict[int, tuple[Shard, ...]]:
        found: dict[int, list[Shard]] = {}
        for shard in self.shards:
            found.setdefault(shard.rank, []).append(shard)
        return {rank: tuple(shards) for rank, shards in found.items()}

    def named(self, sharder: str) -> Plan:
        return replace(self, sharder=sharder)

    def with_tiers_of(self, tables: Sequence[Table]) -> Plan:
        """The same with the memory that these tables lie in."""
        elsewhere = (t for t in tables if t.placement != DEVICE)
        return replace(self, tiers=tuple(Tier(t.name, t.placement, t.cache_share) for t in elsewhere))

    def in_tiers(self, tables: Sequence[Table]) -> tuple[Table, ...]:
        """The tables in the memory that the plan puts them in."""
        tier_of = {tier.table: tier for tier in self.tiers}
        return tuple(
            replace(t, placement=tier.placement, cache_share=tier.cache_share)
            if (tier := tier_of.get(t.name))
            else t
            for t in tables
        )

    def memory_bytes(self, tables: Sequence[Table], optimizer: str = "sgd") -> FloatArray:
        """Weights, optimizer state and (data-parallel) gradients of each rank's shards."""
        by_name = {table.name: table for table in tables}
        held = np.zeros(self.ranks)
        for shard in self.shards:
            held[shard.rank] += shard_bytes(shard, by_name[shard.table], optimizer)
        return held

    def check(self, tables: Sequence[Table], where: str = "plan") -> None:
        """Raise where the plan and the tables do not belong together."""
        by_name = {table.name: table for table in tables}
        if self.ranks < 1:
            raise InputError(where, f"ranks is {self.ranks}", "a plan needs at least one rank")
        shards_of: dict[str, list[Shard]] = {name: [] for name in by_name}
        for shard in self.shards:
            if shard.table not in by_name:
                raise InputError(
                    where, f"no table is named {shard.table!r}", "use the workload's table names"
                )
            if not 0 <= shard.rank < self.ranks:
                raise InputError(
                    where,
                    f"table {shard.table!r} has a shard on rank {shard.rank} of {self.ranks}",
                    f"ranks run from 0 to {self.ranks - 1}",
                )
            if shard.kind not in KINDS:
                raise InputError(
                    where, f"table {shard.table!r}: unknown kind {shard.kind!r}", f"one of {', '.join(KINDS)}"
                )
            shards_of[shard.table].append(shard)
        for name, shards in shards_of.items():
            _check_cover(where, by_name[name], shards, self.ranks)
        seen: set[str] = set()
        for tier in self.tiers:
            if tier.table not in by_name:
                raise InputError(where, f"no table is named {tier.table!r}", "use the workload's table names")
            if tier.table in seen:
                raise InputError(where, f"tiers names table {tier.table!r} twice", "name each table once")
            seen.add(tier.table)
        self.in_tiers(tables)  # a table says which memory there is

    def to_json(self) -> bytes:
        """The plan file: one object per shard, ranges as [start, stop]."""
        document: dict[str, Any] = {"ranks": self.ranks, "sharder": self.sharder, "shards": self.shards}
        if self.tiers:
            document["tiers"] = self.tiers
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str, where: str = "plan") -> Plan:
        try:
            return msgspec.json.decode(text, type=Plan)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                where, f"is not a plan: {error}", "see docs/sharding.md for the format"
            ) from None

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        return cls.from_json(read_bytes(path, "name a plan file"), str(path))

    def write(self, path: str | Path) -> None:
        write_whole(path, self.to_json())


def shard_bytes(shard: Shard, table: Table, optimizer: str) -> float:
    """What one shard takes on its rank."""
    return part_bytes(table, shard.width, shard.height, optimizer, replicated=shard.kind == DATA_PARALLEL)


def part_bytes(table: Table, width: int, height: int, optimizer: str, *, replicated: bool = False) -> float:
    """Weights, optimizer state, and where it is all-reduced the gradient, of a part of a table, as far as
    they lie on the device. FBGEMM keeps the optimizer state of managed tables in host memory, also
    with a cache of their rows (its default, ``enforce_hbm`` false)."""
    weights = height * row_bytes(table.dtype, width) * (2 if replicated else 1)
    state = table.state_bytes(optimizer, height, width) if table.placement == DEVICE else 0.0
    return weights * table.device_share + state


def table_kinds(plan: Plan) -> Mapping[str, str]:
    """How each table is sharded."""
    return {shard.table: shard.kind for shard in plan.shards}


def plan_summary(plan: Plan) -> dict[str, int]:
    """How many tables are sharded in each way."""
    kinds = list(table_kinds(plan).values())
    return {kind: kinds.count(kind) for kind in KINDS if kind in kinds}


def _check_cover(where: str, table: Table, shards: Sequence[Shard], ranks: int) -> None:
    """Each weight is held once (data-parallel: once on every rank)."""
    if not shards:
        raise InputError(where, f"table {table.name!r} lives nowhere", "give it at least one shard")
    kinds = {shard.kind for shard in shards}
    if len(kinds) > 1:
        raise InputError(where, f"table {table.name!r} mixes {' and '.join(sorted(kinds))}", "use one kind")
    for shard in shards:
        inside = (
            0 <= shard.columns[0] < shard.columns[1] <= table.dim
            and 0 <= shard.rows[0] < shard.rows[1] <= table.rows
        )
        if not inside:
            raise InputError(
                where,
                f"table {table.name!r}: columns {shard.columns} × rows {shard.rows} lie outside "
                f"its {table.rows} × {table.dim}",
                "ranges are [start, stop) inside the table",
            )
    if kinds == {DATA_PARALLEL}:
        whole = all(s.width == table.dim and s.height == table.rows for s in shards)
        if sorted(s.rank for s in shards) != list(range(ranks)) or not whole:
            raise InputError(
                where,
                f"data-parallel table {table.name!r} is not whole on every rank",
                "give each rank all of it",
            )
        return
    covered = sum(s.width * s.height for s in shards)
    if covered != table.rows * table.dim or _overlap(shards):
        raise InputError(
            where,
            f"the shards of table {table.name!r} hold {covered} of its {table.rows * table.dim} weights",
            "cover each weight exactly once",
        )


def _overlap(shards: Sequence[Shard]) -> bool:
    ordered = sorted(shards, key=lambda s: (s.columns, s.rows))
    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            if b.columns[0] >= a.columns[1]:
                break
            if b.rows[0] < a.rows[1] and a.rows[0] < b.rows[1]:
                return True
    return False


def plan_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, for reports."""
    decoded: dict[str, Any] = msgspec.json.decode(plan.to_json())
    return decoded
