"""Search for a plan of whole tables by the simulated step itself, for stacks that are not a template.

A stack that treats some rank differently (NVIDIA's example runs the bottom MLP on rank 0 alone) has no common
program in which only lookups and exchanges change. Its plans are simulated one by one, so few of them: from
the best of the standard plans, tables leave the rank whose change helps most until none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.pricing.steps import PlanPricer
from stepsight.sharding.search.rules import Rules
from stepsight.sharding.search.walk import OBJECTIVES, Found
from stepsight.tables.plan import Plan

_CONSTANTS = area("sharding")
SIMULATED_PLANS = _CONSTANTS.whole("SIMULATED_PLANS")


def search_simulated(
    pricer: PlanPricer, rules: Rules, standard: Sequence[Plan], *, objective: str = "mean",
    plans: int | None = None, budget_s: float | None = None,
) -> Found:  # fmt: skip
    """The best plan of whole tables near the best of ``standard``."""
    return _Search(pricer, rules, OBJECTIVES[objective], plans or SIMULATED_PLANS, budget_s).run(standard)


class _Search:
    def __init__(
        self, pricer: PlanPricer, rules: Rules, reduce: Callable[[FloatArray], FloatArray], plans: int,
        budget_s: float | None,
    ) -> None:  # fmt: skip
        self.pricer, self.rules, self.reduce, self.plans = pricer, rules, reduce, plans
        self.budget_s, self.began, self.priced = budget_s, time.perf_counter(), 0

    def run(self, standard: Sequence[Plan]) -> Found:
        best, best_us = standard[0], float("inf")
        for plan in standard:
            step_us = self._step_us(plan)
            if step_us < best_us:
                best, best_us = plan, step_us
        improved = True
        while improved and not self._over():
            improved = False
            for plan in self._neighbours(best):
                if self._over():
                    break
                step_us = self._step_us(plan)
                if step_us < best_us * (1 - 1e-4):
                    best, best_us, improved = plan, step_us, True
                    break
        fits = bool((self._memory(best) <= self.rules.memory_bytes).all())
        seconds = time.perf_counter() - self.began
        timed_out = self.budget_s is not None and seconds >= self.budget_s
        return Found(best.named("search"), best_us, None, self.priced, seconds, fits, timed_out)

    def _neighbours(self, plan: Plan) -> list[Plan]:
        """One table moved or two swapped, from the ranks with the longest lookups first."""
        loads = self.pricer.costs.loads([plan])
        busy = (loads.forward_us + loads.backward_us)[0].mean(axis=0)
        busy = busy + self.pricer.exchange_us(loads)[0].mean(axis=0)
        order = np.argsort(-busy, kind="stable").tolist()
        found = []
        hot, cold = order[: max(len(order) // 4, 1)], order[::-1][: max(len(order) // 2, 1)]
        for source in hot:
            for shard in plan.on_rank(source):
                found += [_moved(plan, {shard.table: target}) for target in cold if target != source]
        for source in hot:
            for target in cold:
                if target != source:
                    found += [
                        _moved(plan, {mine.table: target, theirs.table: source})
                        for mine in plan.on_rank(source)
                        for theirs in plan.on_rank(target)
                    ]
        return [p for p in found if (self._memory(p) <= self.rules.memory_bytes).all()]

    def _memory(self, plan: Plan) -> FloatArray:
        return plan.memory_bytes(self.pricer.costs.tables, self.pricer.costs.optimizer)

    def _step_us(self, plan: Plan) -> float:
        self.priced += 1
        if not (self._memory(plan) <= self.rules.memory_bytes).all():
            return float("inf")
        return float(self.reduce(self.pricer.simulated_days_us(plan)[None])[0])

    def _over(self) -> bool:
        late = self.budget_s is not None and time.perf_counter() - self.began >= self.budget_s
        return late or self.priced >= self.plans


def _moved(plan: Plan, rank_of: dict[str, int]) -> Plan:
    shards = tuple(
        type(s)(s.table, rank_of.get(s.table, s.rank), s.columns, s.rows, s.kind) for s in plan.shards
    )
    return Plan(plan.ranks, shards, plan.sharder)
