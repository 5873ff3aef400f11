import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, Task, random_task, task_workload
from stepsight.platform.load import load_platform
from stepsight.sharding.draft import Draft
from stepsight.sharding.loads import Loads
from stepsight.sharding.rules import TableSharding
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE, Plan, Shard
from stepsight.tables.sharders import SHARDERS, random
from stepsight.tables.table import Table


def test_the_quick_price_is_the_simulated_step(pricer):
    """What thousands of plans are ranked by is what ``predict`` prints for each of them."""
    tables = pricer.costs.tables
    for sharder in SHARDERS.values():
        plan = sharder(tables, 4)
        assert pricer.step_us([plan])[0, 0] == pytest.approx(pricer.simulated_us(plan), rel=0.005)


def test_the_quick_price_knows_nodes():
    task = random_task(4, 1, Scale(most_rows=100_000, tables_per_rank=(4, 4)))
    pricer = PlanPricer(task_workload(task), load_platform("2x2xA100-SXM4-40G"))
    for seed in range(3):
        plan = random(task.tables, 4, seed)
        assert pricer.step_us([plan])[0, 0] == pytest.approx(pricer.simulated_us(plan), rel=0.005)


def test_plans_are_priced_alike_alone_and_together(pricer):
    plans = [random(pricer.costs.tables, 4, seed) for seed in range(20)]
    together = pricer.step_us(plans)
    alone = np.array([pricer.step_us([plan])[0] for plan in plans])
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_permuting_equal_ranks_changes_nothing(pricer, seed):
    plan = random(pricer.costs.tables, 4, seed)
    order = np.random.default_rng(seed).permutation(4)
    moved = Plan(4, tuple(Shard(s.table, int(order[s.rank]), s.columns, s.rows, s.kind) for s in plan.shards))
    assert pricer.step_us([plan]) == pytest.approx(pricer.step_us([moved]), rel=1e-12)


def test_permuting_tables_changes_nothing(pricer):
    plan = random(pricer.costs.tables, 4, 0)
    assert pricer.step_us([plan]) == pytest.approx(
        pricer.step_us([Plan(4, tuple(reversed(plan.shards)))]), rel=1e-9
    )


def test_what_is_sent_is_what_is_looked_up(pricer):
    """Column-wise or table-wise: the pooled columns of all ranks are the tables' columns."""
    tables = pricer.costs.tables
    wanted = sum(t.output_columns for t in tables)
    loads = pricer.costs.loads([random(tables, 4, seed) for seed in range(5)])
    np.testing.assert_allclose(loads.columns.sum(axis=-1), wanted)


def test_a_heavier_rank_never_makes_the_step_shorter(pricer):
    loads = pricer.costs.loads([random(pricer.costs.tables, 4, 0)])
    before = pricer.times(loads)
    for name in ("forward_us", "backward_us", "columns", "lookups"):
        more = {n: getattr(loads, n).copy() for n in Loads.__slots__}
        more[name][0, 0, 2] *= 1.5
        assert pricer.times(Loads(**more)) >= before - 1e-6


def test_replicated_tables_send_nothing_but_gradients(pricer):
    tables = pricer.costs.tables
    base = random(tables, 4, 0)
    first = tables[0]
    copies = tuple(Shard(first.name, r, (0, first.dim), (0, first.rows), DATA_PARALLEL) for r in range(4))
    plan = Plan(4, (*copies, *(s for s in base.shards if s.table != first.name)))
    loads = pricer.costs.loads([base, plan])
    assert loads.columns[1].sum() == loads.columns[0].sum() - first.dim
    assert loads.gradient_bytes[1, 0].tolist() == [4.0 * first.rows * first.dim] * 4
    assert np.isfinite(pricer.step_us([plan])).all()


def test_row_wise_tables_divide_the_lookups_but_not_the_columns(pricer):
    first = pricer.costs.tables[0]
    edges = [round(i * first.rows / 4) for i in range(5)]
    rows = tuple(Shard(first.name, r, (0, first.dim), (edges[r], edges[r + 1]), ROW_WISE) for r in range(4))
    whole = (Shard(first.name, 0, (0, first.dim), (0, first.rows)),)
    spread, single = (pricer.costs.loads([Plan(4, shards)]) for shards in (rows, whole))
    assert spread.lookups.sum() == pytest.approx(single.lookups.sum(), rel=1e-6)
    assert spread.columns.sum() == 4 * single.columns.sum()


def test_one_rank_exchanges_nothing():
    task = Task("one", (Table("a", 1000, 32, 5), Table("idle", 1000, 32, 0)), 512, 1, False)
    pricer = PlanPricer(task_workload(task), load_platform("1xV100-SXM2"))
    plan = SHARDERS["chunks"](task.tables, 1)
    assert pricer.exchange_us(pricer.costs.loads([plan])).max() == 0
    assert pricer.step_us([plan])[0, 0] == pytest.approx(pricer.simulated_us(plan), rel=0.005)


@pytest.mark.parametrize("seed", range(6))
def test_the_quick_price_is_near_for_any_plan(seed):
    """Over random tasks and random plans with columns and rows cut: what a search is led by."""
    rng = np.random.default_rng(seed)
    task = random_task(4, seed, Scale(most_rows=200_000, tables_per_rank=(2, 4), batches=(1024, 8192)))
    pricer = PlanPricer(task_workload(task), load_platform("4xA100-SXM4-40G" if seed % 2 else "4xV100-SXM2"))
    shards = []
    for table in task.tables:
        way, rank = rng.integers(3), int(rng.integers(4))
        if way == 1:
            half = table.dim // 2
            shards += [
                Shard(table.name, rank, (0, half), (0, table.rows), COLUMN_WISE),
                Shard(table.name, (rank + 1) % 4, (half, table.dim), (0, table.rows), COLUMN_WISE),
            ]
        elif way == 2:
            edges = np.linspace(0, table.rows, 5).astype(int).tolist()
            shards += [
                Shard(table.name, r, (0, table.dim), (edges[r], edges[r + 1]), ROW_WISE) for r in range(4)
            ]
        else:
            shards.append(Shard(table.name, rank, (0, table.dim), (0, table.rows), TABLE_WISE))
    plan = Plan(4, tuple(shards))
    assert pricer.step_us([plan])[0, 0] == pytest.approx(pricer.simulated_us(plan), rel=0.05)


def test_replicated_tables_cost_the_quick_price_what_they_cost_the_simulation():
    task = random_task(4, 2, Scale(most_rows=100_000, tables_per_rank=(5, 5), batches=(16384,)))
    workload = task_workload(task)
    pricer = PlanPricer(workload, load_platform("4xV100-SXM2"))
    draft = Draft.of(pricer.costs, SHARDERS["lookup_greedy"](workload.tables, 4))
    sizes = [table.weight_bytes for table in workload.tables]
    for table in sorted(range(len(sizes)), key=lambda i: sizes[i])[:6]:
        draft.apply(TableSharding(table, "data_parallel"))
    plan = draft.plan("replicated")
    assert float(pricer.step_us([plan])[0, 0]) == pytest.approx(pricer.simulated_us(plan), rel=0.02)
