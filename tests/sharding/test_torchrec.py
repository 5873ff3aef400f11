"""The adapter against TorchRec itself; skipped where TorchRec cannot be loaded."""

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed (torchrec==1.8.0, fbgemm-gpu-cpu==1.8.0)")

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

from stepsight.sharding.search import search
from stepsight.sharding.torchrec.planner import (
    StepPerfModel,
    enumerator,
    sharding_plan,
)
from stepsight.tables.torchrec_plan import plan_from_document, torchrec_document


@pytest.fixture(scope="module")
def collection(pricer):
    configs = [
        EmbeddingBagConfig(
            num_embeddings=t.rows, embedding_dim=t.dim, name=t.name, feature_names=[f"f_{t.name}"]
        )
        for t in pricer.costs.tables
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


@pytest.fixture(scope="module")
def topology():
    return Topology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=32 * 10**9)


def test_torchrec_plans_with_our_step_inside(pricer, collection, topology):
    constraints = {t.name: ParameterConstraints(pooling_factors=[t.pooling]) for t in pricer.costs.tables}
    batch = pricer.batch // 4
    rating = StepPerfModel(pricer)
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=batch, constraints=constraints, debug=False,
        enumerator=enumerator(pricer, topology, batch, constraints), performance_model=rating,
    )  # fmt: skip
    theirs = planner.plan(collection, [EmbeddingBagCollectionSharder()])
    plan = plan_from_document(theirs._serialize(), pricer.costs.tables, 4)
    assert rating.rated > 1
    assert pricer.step_us([plan])[0, 0] >= search(pricer, budget_s=1.0).bound_us


def test_our_plan_as_a_torchrec_object_and_back(pricer):
    found = search(pricer, budget_s=0.2).plan.named("torchrec")
    document = torchrec_document(found)
    theirs = sharding_plan(document)
    assert plan_from_document(theirs._serialize(), pricer.costs.tables, 4) == found
    assert theirs._serialize() == document
