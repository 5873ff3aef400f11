"""What each embedding table and each rank of a recommender model costs: lookups, reuse, bytes, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.kernels.embedding.model import EmbeddingModel, TableTraffic
from stepsight.kernels.embedding.traffic import missing_rows
from stepsight.platform.load import Platform
from stepsight.tables.lookup import FBGEMM, INDEX_ADD, Lookup, TableLookup
from stepsight.tables.plan import DATA_PARALLEL, Plan, Shard
from stepsight.tables.table import CACHED, DEVICE
from stepsight.workload.dlrm.config import JOINT_STACK, OWN_PROGRAMS, DlrmConfig
from stepsight.workload.dlrm.embeddings import rank_lookup

HALF_BYTES = 2
Part = tuple[Shard, TableLookup, TableTraffic]
"""What a plan puts on a rank, what is looked up there, and what that costs."""


@dataclass(frozen=True, slots=True)
class TableFigures:
    """One table of a plan: what a batch asks of it, and what that costs on all its ranks together.

    ``unique_rows``: distinct rows of the batch, part by part. ``hit_rate``: share of distinct rows that a
    cache of rows in host memory holds. ``memory_bytes`` and ``cache_bytes``: what forward and backward move
    from and to the device's memory, and through its L2 cache. Times are those of each part alone on its rank.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    placement: str
    cache_share: float
    lookups: float
    unique_rows: float
    hit_rate: float
    memory_bytes: float
    cache_bytes: float
    exchanged_bytes: float
    forward_us: float
    backward_us: float
    reuse: float
    time_us: float


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one rank looks up and sends: times as if its tables ran one after the other."""

    rank: int
    tables: int
    lookups: float
    memory_bytes: float
    sent_bytes: float
    forward_us: float
    backward_us: float
    hottest: str


@dataclass(frozen=True, slots=True)
class EmbeddingFigures:
    """Tables, hottest first, and ranks; ``imbalance``: the busiest rank over the mean in time, minus 1."""

    tables: tuple[TableFigures, ...]
    ranks: tuple[RankLoad, ...]
    imbalance: float


def embedding_figures(config: DlrmConfig, plan: Plan, platform: Platform) -> EmbeddingFigures | None:
    """The figures of a plan on GPUs; None without tables, or on a CPU."""
    if not config.tables or platform.spec.host.synchronous:
        return None
    model = EmbeddingModel.for_gpu(platform.spec.gpu)
    known: dict[TableLookup, TableTraffic] = {}
    parts: dict[str, list[Part]] = {}
    ranks = []
    for rank in range(plan.ranks):
        shards = plan.on_rank(rank)
        lookup = _as_run(config, rank_lookup(config, plan, rank, fused=True))
        found = []
        for shard, part in zip(shards, lookup.tables, strict=True):
            if part not in known:
                known[part] = model.table_traffic(replace(lookup, tables=(part,)), len(shards))
            found.append((shard, part, known[part]))
            parts.setdefault(shard.table, []).append(found[-1])
        ranks.append(_rank(config, rank, found))
    tables = [_table(config, name, parts[name]) for name in parts]
    busy = [r.forward_us + r.backward_us for r in ranks]
    mean = float(np.mean(busy))
    return EmbeddingFigures(
        tuple(sorted(tables, key=lambda t: (-t.time_us, t.name))), tuple(ranks),
        max(busy) / mean - 1 if mean > 0 else 0.0,
    )  # fmt: skip


def _as_run(config: DlrmConfig, lookup: Lookup) -> Lookup:
    """As the stack's own program looks up."""
    if config.stack == JOINT_STACK:
        return replace(lookup, update=INDEX_ADD)
    return replace(lookup, operator="") if lookup.operator == FBGEMM else lookup


def _sent_bytes(config: DlrmConfig, shard: Shard) -> float:
    """Pooled vectors that one shard sends in a forward pass; their gradients come back."""
    if shard.kind == DATA_PARALLEL or config.ranks == 1:
        return 0.0
    half = config.stack in OWN_PROGRAMS and config.training.half
    value = HALF_BYTES if half else config.exchange_bytes
    return float(value * config.batch * shard.width * config.table_of_name[shard.table].features)


def _rank(config: DlrmConfig, rank: int, found: Sequence[Part]) -> RankLoad:
    hottest = max(found, key=lambda f: f[2].forward_us + f[2].backward_us, default=None)
    return RankLoad(
        rank, len(found), sum(part.lookups for _, part, _ in found),
        sum(t.memory_bytes for _, _, t in found), sum(_sent_bytes(config, shard) for shard, _, _ in found),
        sum(t.forward_us for _, _, t in found), sum(t.backward_us for _, _, t in found),
        hottest[0].table if hottest else "",
    )  # fmt: skip


def _table(config: DlrmConfig, name: str, found: Sequence[Part]) -> TableFigures:
    table = config.table_of_name[name]
    lookups = sum(part.lookups for _, part, _ in found)
    unique = sum(traffic.unique_rows for _, _, traffic in found)
    missed = sum(missing_rows(part) for _, part, _ in found) if table.placement in CACHED else 0.0
    forward, backward = (sum(getattr(t, key) for _, _, t in found) for key in ("forward_us", "backward_us"))
    cached = table.cache_share if table.placement in CACHED else float(table.placement == DEVICE)
    return TableFigures(
        name, found[0][0].kind, tuple(shard.rank for shard, _, _ in found), table.placement, cached, lookups,
        unique, 1 - missed / max(unique, 1.0), sum(t.memory_bytes for _, _, t in found),
        sum(t.cache_bytes for _, _, t in found), sum(_sent_bytes(config, shard) for shard, _, _ in found),
        forward, backward, lookups / max(unique, 1.0), forward + backward,
    )  # fmt: skip
