import json

import pytest

from stepsight.documents import to_json
from stepsight.errors import InputError
from stepsight.tables.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    Plan,
    Shard,
)
from stepsight.tables.table import Table
from stepsight.tables.torchrec_plan import (
    plan_from_document,
    planned_ranks,
    read_torchrec,
    torchrec_document,
)

TABLES = tuple(Table(name, 100, 64, 1) for name in ("tw", "cw", "rw", "trw", "dp"))
PLAN = Plan(
    4,
    (
        Shard("tw", 2, (0, 64), (0, 100)),
        Shard("cw", 0, (0, 32), (0, 100), COLUMN_WISE),
        Shard("cw", 3, (32, 64), (0, 100), COLUMN_WISE),
        *(Shard("rw", r, (0, 64), (25 * r, 25 * r + 25), ROW_WISE) for r in range(4)),
        *(Shard("trw", 2 + r, (0, 64), (50 * r, 50 * r + 50), TABLE_ROW_WISE) for r in range(2)),
        *(Shard("dp", r, (0, 64), (0, 100), DATA_PARALLEL) for r in range(4)),
    ),
    "torchrec",
)


def test_a_plan_survives_the_way_to_torchrec_and_back(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(to_json(torchrec_document(PLAN, ranks_per_node=2)))
    assert read_torchrec(path, TABLES, 4) == PLAN


def test_shards_name_rank_and_device_of_the_node():
    document = torchrec_document(PLAN, module="ebc", ranks_per_node=2)
    entry = document["plan"]["ebc"]["tw"]
    assert entry["sharding_type"] == "table_wise"
    assert entry["shards"][0] == {
        "shard_offsets": [0, 0], "shard_sizes": [100, 64], "placement": "rank:2/cuda:0",
    }  # fmt: skip
    assert "shards" not in document["plan"]["ebc"]["dp"]


def test_ranks_that_a_row_wise_table_does_not_reach_are_left_out():
    document = torchrec_document(PLAN)
    shards = document["plan"]["sparse_arch.embedding_bag_collection"]["rw"]["shards"]
    shards.append({"shard_offsets": [100, 0], "shard_sizes": [0, 64], "placement": "rank:3/cuda:3"})
    assert plan_from_document(document, TABLES, 4) == PLAN


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda d: d.pop("plan"), "is not a TorchRec plan"),
        (lambda d: d["plan"]["m"].update(ghost={"sharding_type": "table_wise"}), "no table is named 'ghost'"),
        (lambda d: d["plan"]["m"]["tw"].update(sharding_type="diagonal"), "unknown sharding type"),
        (lambda d: d["plan"]["m"]["tw"].update(shards=[{}]), "without offsets"),
        (lambda d: d["plan"]["m"].pop("cw"), "'cw' lives nowhere"),
    ],
)
def test_a_damaged_document_is_refused(damage, complaint):
    document = json.loads(json.dumps(torchrec_document(PLAN, module="m")))
    damage(document)
    with pytest.raises(InputError, match=complaint):
        plan_from_document(document, TABLES, 4)


def test_a_workload_and_a_comparison_read_torchrecs_plan(tmp_path):
    from stepsight.tables.torchrec_plan import read_plan
    from stepsight.workload.files import parse_workload

    tables = [{"rows": 1000, "dim": 64, "count": 4, "name": "t"}]
    document = {
        "kind": "dlrm", "batch": 64, "dense": {"features": 8, "bottom": [64], "top": [1]}, "tables": tables,
        "parallel": {"ranks": 2, "sharding": [0, 1, 1, 0]},
    }  # fmt: skip
    described = parse_workload(document, "x")
    path = tmp_path / "plan.json"
    path.write_text(to_json(torchrec_document(described.plan)))
    assert planned_ranks(path, 64) == 2
    assert read_plan(path, described.tables, 2).shards == described.plan.shards
    document["parallel"] = {"sharding": {"file": str(path)}}
    assert parse_workload(document, "x").plan.shards == described.plan.shards


def test_a_torchrec_plan_whose_last_ranks_hold_no_table_is_of_all_that_share_the_batch(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(to_json(torchrec_document(Plan.table_wise(TABLES, [0, 2, 1, 2, 0], 4))))
    assert planned_ranks(path, 64) == 4
    assert planned_ranks(path, 48) == 3
