"""Sharding tasks tried for real: predict every plan, then train them all here and compare.

The plans of one task are trained by the same ranks in interleaved blocks, so that the
machine's slow minutes fall on all of them equally.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lab.score.sharding.results import SEARCHED, PlanTrial, Trial
from lab.score.sharding.tasks import Scale, Task, random_task, task_workload
from stepsight.platform.load import Platform
from stepsight.sharding.rules import Rules
from stepsight.sharding.search import search
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.plan import COLUMN_WISE, ROW_WISE, TABLE_WISE, Plan
from stepsight.tables.sharders import SHARDERS
from stepsight.workload.dlrm.build import DlrmWorkload

if TYPE_CHECKING:
    from stepsight.run.ranks import Ranks

LIVE_SCALE = Scale(
    batches=(1024,), least_rows=20_000, most_rows=500_000, most_pooling=80.0,
    tables_per_rank=(2, 5), most_table_bytes=40 << 20,
)  # fmt: skip
"""METHOD §7 scaled to ranks of one CPU core, with its dims: the tables of a task take about 250 MB, far
beyond the caches, and a step takes some tens of milliseconds."""
FEATURES, BOTTOM, TOP = 64, (64, 32), (64, 1)
"""A dense part small enough that tables decide, as they do in heavy production models."""
DRAWN_APART = 0.10
"""Tasks are drawn until the predicted steps of their sharders spread by this much."""


Placement = frozenset[tuple[tuple[str, int, int], ...]]


def drawn_tasks(
    platform: Platform, ranks: int, first: int, count: int
) -> Iterator[tuple[int, Task, PlanPricer]]:
    """Heavy tasks from seed ``first`` on whose sharders are predicted to differ."""
    seed = first
    while count:
        task = random_task(ranks, seed, LIVE_SCALE, heavy=True)
        pricer = PlanPricer(task_workload(task, features=FEATURES, bottom=BOTTOM, top=TOP), platform)
        times = pricer.step_us([sharder(task.tables, ranks) for sharder in SHARDERS.values()])
        if times.max() >= times.min() * (1 + DRAWN_APART):
            yield seed, task, pricer
            count -= 1
        seed += 1


def try_task(
    group: Ranks, task: Task, seed: int, pricer: PlanPricer, *, rounds: int, blocks: int, steps: int,
    budget_s: float = 2.0,
) -> Trial:  # fmt: skip
    """Predict all plans of a task, then measure them in rounds of interleaved blocks."""
    from stepsight.run.measure import measure_all

    plans = {name: sharder(task.tables, task.ranks) for name, sharder in SHARDERS.items()}
    rules = Rules(kinds=(TABLE_WISE, COLUMN_WISE, ROW_WISE))
    also = list(plans.values())
    plans[SEARCHED] = search(pricer, rules, budget_s=budget_s, also=also).plan
    predicted = pricer.step_us(list(plans.values()))[:, 0]
    # Sharders often agree; a placement is trained once, whatever the ranks are called.
    places = {name: _placement(plan) for name, plan in plans.items()}
    first = {place: name for name, place in reversed(places.items())}
    measured: dict[Placement, list[list[list[float]]]] = {place: [] for place in first}
    group.restart()
    for turn in range(rounds):
        order = list(first)[turn:] + list(first)[:turn]
        workloads = [_named(pricer, first[place], plans[first[place]]) for place in order]
        for place, m in zip(
            order, measure_all(group, workloads, steps=steps, blocks=blocks, warmup=2), strict=True
        ):
            measured[place].append(m.job_us.tolist())
    trials = {
        name: PlanTrial(float(us), measured[places[name]]) for name, us in zip(plans, predicted, strict=True)
    }
    return Trial(task.name, seed, len(task.tables), task.batch, trials)


def _placement(plan: Plan) -> Placement:
    """Which tables (and how many of their columns and rows) live together."""
    return frozenset(
        tuple(sorted((s.table, s.width, s.height) for s in plan.on_rank(rank))) for rank in range(plan.ranks)
    )


def _named(pricer: PlanPricer, name: str, plan: Plan) -> DlrmWorkload:
    return DlrmWorkload(replace(pricer.workload.with_plan(plan).config, name=name))
