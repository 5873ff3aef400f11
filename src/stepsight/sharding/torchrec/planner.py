"""stepsight inside TorchRec's planner (extra: torchrec and fbgemm).

``StepPerfModel`` rates a whole proposal by our simulated step; ``LookupEstimator`` prices
single shards. Hand them to ``EmbeddingShardingPlanner`` and keep everything else of it::

    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=batch, constraints=constraints,
        enumerator=enumerator(pricer, topology, batch, constraints),
        performance_model=StepPerfModel(pricer),
    )
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepsight.errors import StepsightError
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.plan import DATA_PARALLEL, Plan, Shard
from stepsight.tables.table import Table
from stepsight.tables.torchrec_plan import Document, torchrec_kind

try:
    from torchrec.distributed.embedding_types import ShardingType
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
    from torchrec.distributed.planner.types import Perf, PerfModel, ShardEstimator
    from torchrec.distributed.types import (
        CacheParams,
        EmbeddingModuleShardingPlan,
        EnumerableShardingSpec,
        ParameterSharding,
        ShardingPlan,
        ShardMetadata,
    )
except ImportError as error:
    raise StepsightError(
        f"TorchRec cannot be loaded ({error}); with torch 2.13.0 install torchrec==1.8.0 and "
        "fbgemm-gpu-cpu==1.8.0, both with --no-deps"
    ) from error


class StepPerfModel(PerfModel):  # type: ignore[misc]
    """Rates a proposal by the predicted step time of the whole job, in µs."""

    def __init__(self, pricer: PlanPricer) -> None:
        self.pricer = pricer
        self.rated = 0

    def rate(self, plan: Sequence[Any]) -> float:
        self.rated += 1
        ours = plan_of_options(plan, self.pricer.costs.tables, self.pricer.ranks)
        return float(self.pricer.step_us([ours]).mean())


class LookupEstimator(ShardEstimator):  # type: ignore[misc]
    """Prices each shard by our lookup and exchange models, in the ms that TorchRec counts in."""

    def __init__(self, pricer: PlanPricer) -> None:
        self.pricer = pricer

    def estimate(self, sharding_options: Sequence[Any], sharder_data_map: Mapping[str, Any]) -> None:
        costs = self.pricer.costs
        for option in sharding_options:
            kind = torchrec_kind(option.sharding_type)
            table = costs.index_of[option.name]
            for shard in option.shards:
                height, width = shard.size
                if not height or not width:
                    shard.perf = Perf(0.0, 0.0, 0.0, 0.0)
                    continue
                part = costs.part(table, width, height, kind)
                forward, exchange, backward, exchange_back = self.pricer.part_us(part)
                shard.perf = Perf(forward / 1e3, exchange / 1e3, backward / 1e3, exchange_back / 1e3)


def enumerator(
    pricer: PlanPricer, topology: Any, batch_size: int, constraints: Mapping[str, Any] | None = None
) -> Any:
    """TorchRec's enumerator with our times and its own storage."""
    storage = EmbeddingStorageEstimator(topology=topology, constraints=constraints)
    return EmbeddingEnumerator(
        topology=topology,
        batch_size=batch_size,
        constraints=constraints,
        estimator=[LookupEstimator(pricer), storage],
    )


def plan_of_options(options: Sequence[Any], tables: Sequence[Table], ranks: int) -> Plan:
    """Our plan for the sharding options of a proposal, ranks assigned."""
    by_name = {table.name: table for table in tables}
    shards: list[Shard] = []
    for option in options:
        kind = torchrec_kind(option.sharding_type)
        if kind == DATA_PARALLEL:
            whole = by_name[option.name]
            shards += [Shard(option.name, r, (0, whole.dim), (0, whole.rows), kind) for r in range(ranks)]
            continue
        for shard in option.shards:
            (row, column), (height, width) = shard.offset, shard.size
            if height and width:
                shards.append(
                    Shard(option.name, shard.rank, (column, column + width), (row, row + height), kind)
                )
    return Plan(ranks, tuple(shards), "torchrec")


def sharding_plan(document: Document) -> Any:
    """TorchRec's ``ShardingPlan`` object for a plan document."""
    return ShardingPlan(
        {
            module: EmbeddingModuleShardingPlan({name: _parameter(entry) for name, entry in tables.items()})
            for module, tables in document["plan"].items()
        }
    )


def _parameter(entry: Mapping[str, Any]) -> Any:
    spec = None
    if entry["sharding_type"] != ShardingType.DATA_PARALLEL.value:
        spec = EnumerableShardingSpec(
            [ShardMetadata(s["shard_offsets"], s["shard_sizes"], s["placement"]) for s in entry["shards"]]
        )
    cache = CacheParams(**entry["cache_params"]) if "cache_params" in entry else None
    return ParameterSharding(
        entry["sharding_type"], entry["compute_kernel"], entry["ranks"], spec, cache_params=cache
    )
