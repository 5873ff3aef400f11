import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.score.sharding.tasks import population
from stepsight.sharding.rules import Rules
from stepsight.sharding.search import C, search
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.plan import COLUMN_WISE, KINDS, TABLE_WISE, Plan
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table

WHOLE = Rules(kinds=(TABLE_WISE,))


def test_the_search_beats_every_sharder_and_keeps_the_bound(pricer):
    tables = pricer.costs.tables
    found = search(pricer, budget_s=1.0)
    found.plan.check(tables)
    best = min(pricer.step_us([sharder(tables, 4)])[0, 0] for sharder in SHARDERS.values())
    assert found.step_us <= best * (1 + 1e-9)
    assert found.bound_us <= found.step_us
    assert pricer.step_us([found.plan])[0, 0] == pytest.approx(found.step_us, rel=1e-6)


def test_the_same_seed_finds_the_same_plan(on_paper, some_tables):
    plans = {search(on_paper(some_tables, 3), WHOLE, budget_s=60, seed=3).plan for _ in range(2)}
    assert len(plans) == 1


@pytest.mark.parametrize("seed", range(5))
def test_small_tasks_are_solved_as_by_trying_everything(on_paper, seed):
    tables = population(6, seed)
    pricer = on_paper(tables, 2)
    every = [Plan.table_wise(tables, ranks, 2) for ranks in itertools.product(range(2), repeat=6)]
    best = pricer.step_us(every).min()
    assert search(pricer, WHOLE, budget_s=60).step_us == pytest.approx(best, rel=1e-9)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 5), count=st.integers(1, 9))
def test_an_extra_rank_never_makes_the_best_plan_slower_on_paper(on_paper, seed, ranks, count):
    tables = population(count, seed)
    fewer = search(on_paper(tables, ranks), WHOLE, budget_s=60)
    more = search(
        on_paper(tables, ranks + 1), WHOLE, budget_s=60, also=[replace(fewer.plan, ranks=ranks + 1)]
    )
    assert more.step_us <= fewer.step_us * (1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 4))
def test_no_plan_lies_below_the_bound(on_paper, seed, ranks):
    tables = population(5, seed)
    pricer = on_paper(tables, ranks)
    found = search(pricer, budget_s=0.0)
    drawn = [SHARDERS["random"](tables, ranks), *(s(tables, ranks) for s in SHARDERS.values())]
    assert pricer.step_us(drawn).min() >= found.bound_us * (1 - 1e-9)


def test_long_bags_on_one_rank_do_not_raise_the_bound_of_all(on_paper):
    """Two ranks, one with the long bags and one with the wide rows, are faster than two with half of each."""
    tables = population(5, 2819)
    pricer = on_paper(tables, 2)
    drawn = [sharder(tables, 2) for sharder in SHARDERS.values()]
    assert pricer.step_us(drawn).min() >= search(pricer, budget_s=0.0).bound_us


@settings(deadline=None, max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(2, 5),
    count=st.integers(1, 9),
    tightness=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_more_kinds_are_never_worse_than_fewer(on_paper, seed, ranks, count, tightness):
    tables = population(count, seed)
    room = sum(t.weight_bytes for t in tables) / ranks / tightness if tightness else float("inf")
    pricer = on_paper(tables, ranks)
    extra = [kind for kind in KINDS if kind != TABLE_WISE]
    found = {
        frozenset(some): search(pricer, Rules(room, some), plans=60)
        for n in range(len(extra) + 1)
        for some in itertools.combinations(extra, n)
    }
    for more, fewer in itertools.product(found, repeat=2):
        if fewer < more and found[fewer].fits:
            assert found[more].fits
            # A search ends early this close to the bound.
            assert found[more].step_us <= found[fewer].step_us * (1 + C.CLOSE_ENOUGH)


def test_more_ranks_than_tables_splits_columns(on_paper):
    tables = [Table("a", 100_000, 256, 50), Table("b", 100_000, 256, 50)]
    found = search(on_paper(tables, 4), Rules(kinds=(TABLE_WISE, COLUMN_WISE)), budget_s=5)
    assert len(found.plan.shards) >= 4
    assert {shard.rank for shard in found.plan.shards} == {0, 1, 2, 3}


def test_memory_is_kept_where_a_plan_can_keep_it(on_paper):
    tables = [Table(f"t{i}", 100_000, 64, 50 if i == 0 else 1) for i in range(4)]
    room = 2 * tables[0].weight_bytes
    found = search(on_paper(tables, 2), Rules(room, (TABLE_WISE,)), budget_s=5)
    assert found.fits
    assert found.plan.memory_bytes(tables).max() <= room


def test_worst_day_and_mean_day_are_different_aims(on_paper):
    """A table that is hot on one day only counts fully in the worst case."""
    calm = [Table(f"t{i}", 1_000_000, 64, 20, IndexDistribution.zipf(1.2)) for i in range(6)]
    wild = [Table(t.name, t.rows, t.dim, t.pooling, IndexDistribution.uniform()) for t in calm[:3]]
    pricer = on_paper(calm, 2, days=[calm, [*wild, *calm[3:]]])
    worst = search(pricer, WHOLE, budget_s=5, objective="worst")
    mean = search(pricer, WHOLE, budget_s=5, objective="mean")
    days = pricer.step_us([worst.plan, mean.plan])
    assert days.shape == (2, 2)
    assert days[0].max() <= days[1].max() * (1 + 1e-9)
    assert days[1].mean() <= days[0].mean() * (1 + 1e-9)


def test_a_search_without_time_still_answers(pricer):
    found = search(pricer, budget_s=0.0)
    found.plan.check(pricer.costs.tables)
    assert np.isfinite(found.step_us)


def test_a_plan_that_nearly_fits_never_wins_over_one_that_does(on_paper):
    """Two busy tables: apart they are faster, but one byte of room is missing there."""
    tables = [Table("a", 100_000, 64, 80.0), Table("b", 100_000, 64, 80.0), Table("c", 300_000, 64, 1.0)]
    room = tables[0].weight_bytes + tables[2].weight_bytes - 1.0
    found = search(on_paper(tables, 2), Rules(room, (TABLE_WISE,)), plans=300)
    assert found.fits
    assert found.plan.memory_bytes(tables).max() <= room


def test_the_budget_counts_plans_not_seconds(on_paper, some_tables):
    first, second = (search(on_paper(some_tables, 3), plans=200, seed=1) for _ in range(2))
    assert (first.plan, first.priced, first.step_us) == (second.plan, second.priced, second.step_us)
    assert not first.timed_out
