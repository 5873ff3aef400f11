"""TorchRec's sharding plan as a file: the form that ``ShardingPlan._serialize()`` gives.

Reading and writing it needs no TorchRec. `stepsight.run.torchrec.sharding_plan` turns the same document
into TorchRec's own objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import number, read_json
from stepsight.tables.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    KINDS,
    TABLE_ROW_WISE,
    Plan,
    Shard,
    Tier,
)
from stepsight.tables.table import CACHE_SHARE, CACHED, Table

MODULE = "sparse_arch.embedding_bag_collection"
"""Where the collection sits in TorchRec's own DLRM; plans name their module by path."""
Document = Mapping[str, Any]
_GRID = "grid_shard"
_KERNELS = {"uvm": "fused_uvm", "uvm_caching": "fused_uvm_caching", "ssd": "key_value"}
"""TorchRec's compute kernels of tables in host memory and on a drive."""
_PLACEMENTS = {kernel: placement for placement, kernel in _KERNELS.items()}
_FROM_TORCHREC = {**{kind: kind for kind in KINDS}, "table_column_wise": COLUMN_WISE, _GRID: TABLE_ROW_WISE}


def torchrec_document(
    plan: Plan, *, module: str = MODULE, device: str = "cuda", ranks_per_node: int | None = None
) -> dict[str, Any]:
    """The plan as TorchRec writes it, and the share of rows that each cache holds."""
    per_node = ranks_per_node or plan.ranks
    tables: dict[str, list[Shard]] = {}
    tiers = {tier.table: tier for tier in plan.tiers}
    for shard in plan.shards:
        tables.setdefault(shard.table, []).append(shard)
    return {
        "plan": {
            module: {
                name: _parameter(
                    sorted(shards, key=lambda s: (s.columns, s.rows)),
                    device,
                    per_node,
                    tiers.get(name),
                )
                for name, shards in tables.items()
            }
        }
    }


def plan_from_document(
    document: Document, tables: Sequence[Table], ranks: int, where: str = "torchrec plan"
) -> Plan:
    """The plan that a TorchRec document describes for these tables."""
    by_name = {table.name: table for table in tables}
    shards: list[Shard] = []
    tiers: list[Tier] = []
    for name, parameter in _parameters(document, where):
        if name not in by_name:
            raise InputError(where, f"no table is named {name!r}", "use the workload's table names")
        kind = torchrec_kind(str(parameter.get("sharding_type")), f"{where}: table {name!r}")
        if kind == DATA_PARALLEL:
            whole = by_name[name]
            shards += [Shard(name, r, (0, whole.dim), (0, whole.rows), kind) for r in range(ranks)]
        else:
            shards += _shards(name, kind, parameter.get("shards") or (), where)
        if (placement := _PLACEMENTS.get(str(parameter.get("compute_kernel")))) is not None:
            tiers.append(Tier(name, placement, _cache_share(parameter, f"{where}: table {name!r}")))
    plan = Plan(ranks, tuple(shards), "torchrec", tuple(tiers))
    plan.check(tables, where)
    return plan


def torchrec_kind(sharding_type: str, where: str = "torchrec plan") -> str:
    """What we call a TorchRec sharding type."""
    if sharding_type not in _FROM_TORCHREC:
        raise InputError(
            where, f"unknown sharding type {sharding_type!r}", f"one of {', '.join(_FROM_TORCHREC)}"
        )
    return _FROM_TORCHREC[sharding_type]


def read_torchrec(path: str | Path, tables: Sequence[Table], ranks: int) -> Plan:
    """The plan in a TorchRec plan file."""
    document = read_json(path, "write one with --torchrec")
    return plan_from_document(document, tables, ranks, str(path))


def is_torchrec(path: str | Path) -> bool:
    """Whether a JSON file is a plan as TorchRec writes it, not one of ours."""
    document = read_json(path, "name a plan file")
    return isinstance(document, Mapping) and "plan" in document and "shards" not in document


def read_plan(path: str | Path, tables: Sequence[Table], ranks: int) -> Plan:
    """The plan in a file of ours or of TorchRec's."""
    return read_torchrec(path, tables, ranks) if is_torchrec(path) else Plan.read(path)


def planned_ranks(path: str | Path, batch: int) -> int:
    """For how many ranks a plan file was made: of TorchRec's, as many as it names and, since the last ones
    may hold no table, as many as share the batch evenly."""
    if not is_torchrec(path):
        return Plan.read(path).ranks
    where = str(path)
    named = [
        int(rank)
        for _, parameter in _parameters(read_json(path, "name a plan file"), where)
        for rank in parameter.get("ranks") or ()
        if isinstance(rank, int) and rank >= 0
    ]
    if not named:
        raise InputError(where, "names no rank", "give each table's ranks")
    least = max(named) + 1
    return next((ranks for ranks in range(least, min(batch, 2 * least) + 1) if batch % ranks == 0), least)


def _cache_share(parameter: Mapping[str, Any], where: str) -> float:
    """The load factor of a table's cache: TorchRec's default unless the plan says one."""
    given = parameter.get("cache_params") or {}
    factor = given.get("load_factor") if isinstance(given, Mapping) else None
    return CACHE_SHARE if factor is None else number(factor, f"{where}: load_factor")


def _parameter(shards: Sequence[Shard], device: str, per_node: int, tier: Tier | None) -> dict[str, Any]:
    kind = shards[0].kind
    if kind == TABLE_ROW_WISE and len({s.columns for s in shards}) > 1:
        kind = _GRID
    parameter: dict[str, Any] = {
        "sharding_type": kind,
        "compute_kernel": "dense"
        if kind == DATA_PARALLEL
        else _KERNELS.get(tier.placement if tier else "", "fused"),
        "ranks": [s.rank for s in shards],
    }
    if tier is not None and tier.placement in CACHED:
        parameter["cache_params"] = {"load_factor": tier.cache_share}
    if kind != DATA_PARALLEL:
        parameter["shards"] = [
            {
                "shard_offsets": [s.rows[0], s.columns[0]],
                "shard_sizes": [s.height, s.width],
                "placement": f"rank:{s.rank}/{device}" + (f":{s.rank % per_node}" if device != "cpu" else ""),
            }
            for s in shards
        ]
    return parameter


def _parameters(document: Document, where: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    modules = document.get("plan") if isinstance(document, Mapping) else None
    if not isinstance(modules, Mapping) or not all(isinstance(m, Mapping) for m in modules.values()):
        raise InputError(where, "is not a TorchRec plan", 'it holds {"plan": {module: {table: …}}}')
    for module in modules.values():
        for name, parameter in module.items():
            if not isinstance(parameter, Mapping):
                raise InputError(where, f"table {name!r} has no sharding", "give its sharding_type")
            yield name, parameter


def _shards(name: str, kind: str, entries: Sequence[Mapping[str, Any]], where: str) -> list[Shard]:
    shards = []
    if not isinstance(entries, list):
        raise InputError(where, f"table {name!r} has no list of shards", "give its shards")
    for entry in entries:
        try:
            where_cut = entry["shard_offsets"], entry["shard_sizes"]
            (row, column), (height, width) = ([int(size) for size in sizes] for sizes in where_cut)
            rank = int(str(entry["placement"]).removeprefix("rank:").split("/")[0])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(
                where, f"table {name!r} has a shard without offsets, sizes or placement", "name all three"
            ) from None
        # TorchRec gives ranks that a row-wise table does not reach a shard of no rows.
        if height and width:
            shards.append(Shard(name, rank, (column, column + width), (row, row + height), kind))
    return shards
