"""What the quick pricer charges for a plan's exchanges is what the plan's own program communicates."""

from dataclasses import replace

import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, random_task, task_workload
from stepsight.platform.load import load_platform
from stepsight.sharding.steps import Exchange, PlanPricer
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION, price
from stepsight.tables.plan import TABLE_ROW_WISE, Plan, Shard
from stepsight.tables.sharders import random

PLATFORMS = {"2x2xA100-SXM4-40G": (4, 2), "4x8xH100-SXM-400G": (32, 8)}


@pytest.fixture(scope="module", params=PLATFORMS)
def task(request):
    ranks, per_node = PLATFORMS[request.param]
    drawn = random_task(ranks, 1, Scale(most_rows=100_000, tables_per_rank=(2, 2)))
    return task_workload(drawn), load_platform(request.param), per_node


def over_nodes(plan: Plan, tables, per_node: int) -> Plan:
    """The plan with these tables cut by rows over the ranks of one node each, the nodes in turn."""
    names = {t.name for t in tables}
    shards = [s for s in plan.shards if s.table not in names]
    for i, table in enumerate(tables):
        first = i * per_node % plan.ranks
        edges = [table.rows * j // per_node for j in range(per_node + 1)]
        shards += [
            Shard(table.name, first + j, (0, table.dim), (edges[j], edges[j + 1]), TABLE_ROW_WISE)
            for j in range(per_node)
        ]
    return replace(plan, shards=tuple(shards))


def communicated(workload, platform, plan):
    """By rank, the collectives of pooled embeddings (forward) and their gradients as ``predict`` has them."""
    job = workload.with_plan(plan).job()
    there, back = np.zeros(workload.ranks), np.zeros(workload.ranks)
    for lane in price(job, platform, fold_identical=False).lanes:
        times = np.broadcast_to(lane.times.device_us[:, 0], (len(lane.times.device_us), len(lane.lane.ranks)))
        ops = job.programs[int(lane.programs[0])].ops
        items = [(op.phase, item) for op in ops for item in launches_of(op)]
        for k, (phase, item) in enumerate(items):
            if lane.category[k] == COMMUNICATION and item.kind != "all_reduce":
                (back if phase == "backward" else there)[lane.lane.ranks] += times[k]
    return there, back


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_both_ways_of_pricing_a_plan_exchange_the_same(task, share):
    """No table, some or all of them summed inside their nodes."""
    workload, platform, per_node = task
    cut = workload.tables[: round(share * len(workload.tables))]
    plan = over_nodes(random(workload.tables, workload.ranks, 1), cut, per_node)
    pricer = PlanPricer(workload, platform)
    exchange = Exchange(platform, workload.config.batch, workload.ranks, per_node)
    quick = [t[0, 0] for t in exchange.times(pricer.costs.loads([plan]))]
    for mine, simulated in zip(quick, communicated(workload, platform, plan), strict=True):
        np.testing.assert_allclose(mine, simulated, rtol=1e-9)


def test_sums_inside_a_node_send_less_between_nodes_than_partial_sums(task):
    workload, platform, per_node = task
    summed = over_nodes(random(workload.tables, workload.ranks, 1), workload.tables, per_node)
    flat = replace(summed, shards=tuple(replace(s, kind="row_wise") for s in summed.shards))
    pricer = PlanPricer(workload, platform)
    inside, outside = (pricer.exchange_us(pricer.costs.loads([plan])).max() for plan in (summed, flat))
    assert inside < outside


def test_one_table_costs_the_nodes_that_do_not_hold_it_no_sums_of_their_own(task):
    workload, _, per_node = task
    plan = over_nodes(random(workload.tables, workload.ranks, 1), workload.tables[:1], per_node)
    job = workload.with_plan(plan).job()
    sums = [
        next(op.collective.bytes for op in job.programs[p].ops if op.name == "ReduceScatter_Req")
        for p in job.program_of_rank
    ]
    held = 4.0 * workload.config.batch * workload.tables[0].dim
    assert sums == [held] * per_node + [0.0] * (workload.ranks - per_node)
