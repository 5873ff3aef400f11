import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, population
from stepsight.sharding.draft import Draft, Move, changes, shaken, spreads
from stepsight.sharding.loads import Loads
from stepsight.sharding.rules import Rules, TableSharding
from stepsight.sharding.starts import starts, table_weights
from stepsight.tables.plan import KINDS, ROW_WISE
from stepsight.tables.sharders import random

EVERYTHING = Rules(kinds=KINDS)


@pytest.fixture
def draft(on_paper):
    tables = population(10, 3, Scale(most_rows=50_000))
    return Draft.of(on_paper(tables, 4).costs, random(tables, 4, 1))


def assert_same(first: Loads, second: Loads) -> None:
    for name in Loads.__slots__:
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-6, err_msg=name)


def one(loads: Loads, position: int) -> Loads:
    return Loads(*(getattr(loads, name)[[position]] for name in Loads.__slots__))


def test_a_change_is_priced_as_it_would_be_carried_out(draft):
    options = changes(draft, EVERYTHING, 1.0)
    assert any(option.come for option in options)
    assert any(option.leave[1] < draft.costs.tables[option.leave[0]].dim for option in options)
    foreseen = draft.loads_after(options)
    for position, option in enumerate(options[::7]):
        after = draft.copy()
        after.apply(option)
        assert_same(one(foreseen, 7 * position), after.loads())


def test_spreading_is_priced_as_it_would_be_carried_out(draft):
    options = spreads(draft, EVERYTHING, 1.0)
    assert len({option.kind for option in options}) > 1
    foreseen = draft.loads_spread(options)
    for position, option in enumerate(options):
        after = draft.copy()
        after.apply(option)
        assert_same(one(foreseen, position), after.loads())


def test_a_draft_and_its_plan_cost_the_same(draft):
    rng = np.random.default_rng(0)
    for _ in range(20):
        draft = shaken(draft, EVERYTHING, rng)
    draft.apply(TableSharding(0, ROW_WISE))
    plan = draft.plan("shaken")
    plan.check(draft.costs.tables)
    assert_same(draft.loads(), draft.costs.loads([plan]))
    assert_same(draft.loads(), Draft.of(draft.costs, plan).loads())


def test_columns_that_come_back_are_one_part_again(draft):
    rank = next(r for r in range(4) if draft.widths[r])
    table, width = next(iter(draft.widths[rank].items()))
    before = draft.loads()
    draft.apply(Move(rank, (rank + 1) % 4, (table, width // 2)))
    draft.apply(Move((rank + 1) % 4, rank, (table, width // 2)))
    assert draft.widths[rank][table] == width
    assert_same(before, draft.loads())


def test_every_start_is_a_whole_plan_within_memory(on_paper):
    tables = population(12, 4, Scale(most_rows=50_000))
    costs = on_paper(tables, 4).costs
    room = sum(t.weight_bytes for t in tables) / 4 * 1.5
    rules = Rules(room, KINDS)
    made = list(starts(costs, rules, table_weights(on_paper(costs.tables, costs.ranks), 1.0), {}))
    assert len(made) > 3
    for draft in made:
        plan = draft.plan("start")
        plan.check(tables)
        assert plan.memory_bytes(tables).max() <= room
