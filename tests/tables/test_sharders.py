import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.errors import InputError
from stepsight.tables.sharders import SHARDERS, random
from stepsight.tables.table import Table

tables_strategy = st.lists(
    st.tuples(st.integers(1, 10**6), st.sampled_from([8, 32, 64]), st.floats(0, 100)), min_size=1, max_size=30
).map(lambda drawn: tuple(Table(f"t{i}", *sizes) for i, sizes in enumerate(drawn)))


@pytest.mark.parametrize("name", SHARDERS)
@given(tables=tables_strategy, ranks=st.integers(1, 9))
def test_every_sharder_places_every_byte_once(name, tables, ranks):
    plan = SHARDERS[name](tables, ranks)
    plan.check(tables)
    assert plan.sharder == name
    assert plan.memory_bytes(tables).sum() == sum(t.weight_bytes for t in tables)


def test_round_robin_and_chunks_by_hand():
    tables = [Table(f"t{i}", 10, 8, 1) for i in range(5)]
    assert [s.rank for s in SHARDERS["round_robin"](tables, 2).shards] == [0, 1, 0, 1, 0]
    assert [s.rank for s in SHARDERS["chunks"](tables, 2).shards] == [0, 0, 0, 1, 1]


def test_greedy_gives_the_costliest_table_a_rank_to_itself():
    tables = [Table("big", 1000, 64, 50), *(Table(f"t{i}", 1000, 64, 10) for i in range(5))]
    ranks = {s.table: s.rank for s in SHARDERS["lookup_greedy"](tables, 2).shards}
    assert all(ranks[f"t{i}"] != ranks["big"] for i in range(5))


def test_tables_without_lookups_still_spread():
    tables = [Table(f"t{i}", 100, 8, 0) for i in range(8)]
    assert sorted(s.rank for s in SHARDERS["lookup_greedy"](tables, 4).shards) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_random_is_seeded():
    tables = [Table(f"t{i}", 10, 8, 1) for i in range(20)]
    assert random(tables, 4, 1) == random(tables, 4, 1) != random(tables, 4, 2)


def test_no_rank_is_refused():
    with pytest.raises(InputError, match="at least one rank"):
        SHARDERS["chunks"]([Table("a", 1, 1, 1)], 0)
