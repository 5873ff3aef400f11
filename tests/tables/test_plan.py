import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.errors import InputError
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, Plan, Shard, Tier, plan_summary
from stepsight.tables.table import Table

TABLES = (Table("a", 100, 64, 10), Table("b", 40, 32, 1))


def mixed_plan() -> Plan:
    return Plan(
        2,
        (
            Shard("a", 0, (0, 32), (0, 100), COLUMN_WISE),
            Shard("a", 1, (32, 64), (0, 100), COLUMN_WISE),
            Shard("b", 0, (0, 32), (0, 40), DATA_PARALLEL),
            Shard("b", 1, (0, 32), (0, 40), DATA_PARALLEL),
        ),
        "by hand",
    )


def test_a_plan_survives_its_file(tmp_path):
    path = tmp_path / "plan.json"
    mixed_plan().write(path)
    assert Plan.read(path) == mixed_plan()


def test_memory_counts_weights_state_and_replicated_gradients():
    sgd = mixed_plan().memory_bytes(TABLES, "sgd")
    assert sgd.tolist() == [100 * 32 * 4 + 2 * 40 * 32 * 4] * 2
    adagrad = mixed_plan().memory_bytes(TABLES, "adagrad")
    assert adagrad.tolist() == [2 * 100 * 32 * 4 + 3 * 40 * 32 * 4] * 2


def test_a_sound_plan_passes():
    mixed_plan().check(TABLES)
    assert plan_summary(mixed_plan()) == {COLUMN_WISE: 1, DATA_PARALLEL: 1}


@pytest.mark.parametrize(
    ("shards", "complaint"),
    [
        ((Shard("a", 0, (0, 64), (0, 100)),), "'b' lives nowhere"),
        ((Shard("c", 0, (0, 1), (0, 1)),), "no table is named 'c'"),
        ((Shard("a", 5, (0, 64), (0, 100)),), "rank 5 of 2"),
        ((Shard("a", 0, (0, 64), (0, 100), "diagonal"),), "unknown kind"),
        ((Shard("a", 0, (0, 65), (0, 100)),), "outside"),
        ((Shard("a", 0, (0, 32), (0, 100), COLUMN_WISE),), "hold 3200 of its 6400"),
        ((Shard("a", 0, (0, 64), (0, 50), ROW_WISE), Shard("a", 1, (0, 64), (25, 75), ROW_WISE)), "once"),
        ((Shard("a", 0, (0, 64), (0, 100), DATA_PARALLEL),), "not whole on every rank"),
        ((Shard("a", 0, (0, 32), (0, 100), COLUMN_WISE), Shard("a", 1, (32, 64), (0, 100), ROW_WISE)), "mix"),
    ],
)  # fmt: skip
def test_a_plan_that_loses_or_doubles_weights_is_refused(shards, complaint):
    with pytest.raises(InputError, match=complaint):
        Plan(2, shards).check(TABLES)


def test_a_plan_that_keeps_a_table_in_two_tiers_is_refused():
    twice = replace(mixed_plan(), tiers=(Tier("a", "uvm"), Tier("a", "uvm_caching")))
    with pytest.raises(InputError, match="tiers names table 'a' twice"):
        twice.check(TABLES)


@pytest.mark.parametrize("text", ["", "[]", '{"ranks": 2}', '{"ranks": "two", "shards": []}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"plan.json"):
        Plan.read(path)


@given(
    rows=st.integers(1, 50), dim=st.integers(1, 64), cuts=st.sets(st.integers(1, 63)), ranks=st.integers(1, 8)
)
def test_any_column_split_conserves_the_bytes(rows, dim, cuts, ranks):
    table = Table("t", rows, dim, 1)
    edges = [0, *sorted(c for c in cuts if c < dim), dim]
    shards = tuple(
        Shard("t", i % ranks, (a, b), (0, rows), COLUMN_WISE)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    )
    plan = Plan(ranks, shards)
    plan.check([table])
    assert np.isclose(plan.memory_bytes([table]).sum(), table.weight_bytes)
    assert Plan.from_json(plan.to_json()) == plan
