"""Search for the plan with the least simulated step time.

Greedy starts first, then the best of thousands of small changes at a time (moves, swaps,
column splits, spreading a table over ranks), each priced by the whole step. Where nothing
small helps any more, the plan is shaken and the search goes on. This is done for whole tables alone, then
for every combination of kinds, which also starts from the best plans of the combinations with one kind less:
so allowing a kind never makes the answer worse. Its budget is counted in plans
priced, so the same seed gives the same plan on any machine; a limit in seconds can be set besides.
It says how far it is from the least possible step. Memory is a hard limit: a plan that does not
fit never wins over one that does, and where no start fits the tables are packed first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.sharding.draft import Draft, Move, changes, shaken, spreads
from stepsight.sharding.loads import Loads
from stepsight.sharding.rules import Rules, TableSharding, holders, least_loads
from stepsight.sharding.starts import packed, starts, table_weights
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.plan import TABLE_WISE, Plan, Shard

C = area("sharding")
PLANS = C.whole("PLANS")
SHAKES = C.whole("SHAKES")
SIMULATED_PLANS = C.whole("SIMULATED_PLANS")
STARTS = C.whole("STARTS")
WALKED = C.whole("WALKED")

OBJECTIVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "mean": lambda us: np.asarray(us.mean(axis=-1)),
    "worst": lambda us: np.asarray(us.max(axis=-1)),
}
"""How the step times of several days become one number."""
LOADS = ("forward_us", "backward_us", "columns", "lookups")


@dataclass(frozen=True, slots=True)
class Progress:
    """How a search stands."""

    seconds: float
    priced: int
    step_us: float
    bound_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search: its step time, the lower bound if one is known, and what the search took.

    ``rivals`` are the best plans of other combinations of kinds that may be faster when simulated.
    ``timed_out``: a limit in seconds ended it, so that another run may find another plan.
    """

    plan: Plan
    step_us: float
    bound_us: float | None
    priced: int
    seconds: float
    fits: bool
    timed_out: bool = False
    rivals: tuple[Plan, ...] = ()

    @property
    def gap(self) -> float | None:
        """How much slower than the lower bound, as a fraction."""
        return None if self.bound_us is None else self.step_us / self.bound_us - 1


def search(
    pricer: PlanPricer, rules: Rules | None = None, *, plans: int | None = None,
    budget_s: float | None = None, seed: int = 0, objective: str = "mean", also: Sequence[Plan] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Found:  # fmt: skip
    """The best plan found. Each combination of kinds ends after ``plans`` priced, or earlier where shaking no
    longer helps.

    ``budget_s`` ends it after this many seconds instead (or, with ``plans``, besides). ``also`` are
    plans to start from besides the greedy ones.
    """
    return _Search(pricer, rules or Rules(), plans, budget_s, seed, objective, progress).run(also)


class _Search:
    def __init__(
        self, pricer: PlanPricer, rules: Rules, plans: int | None, budget_s: float | None, seed: int,
        objective: str, progress: Callable[[Progress], None] | None,
    ) -> None:  # fmt: skip
        self.pricer, self.all_rules, self.costs = pricer, rules, pricer.costs
        self.reduce, self.progress, self.seed = OBJECTIVES[objective], progress, seed
        self.began, self.priced = time.perf_counter(), 0
        self.budget_s, self.timed_out = budget_s, False
        self.plans = PLANS if plans is None and budget_s is None else plans
        self.exchange_us = self._exchange_us_per_column()
        self.weights = table_weights(pricer, self.exchange_us)
        self.bound_us = float(self.reduce(pricer.times(least_loads(self.costs, rules))).min())

    def run(self, also: Sequence[Plan]) -> Found:
        every = self.all_rules.combinations(self.costs)
        tried: dict[tuple[object, ...], bool] = {}
        given = [(frozenset(shard.kind for shard in plan.shards) | {TABLE_WISE}, plan) for plan in also]
        best: dict[frozenset[str], tuple[Draft, float]] = {}
        for number, self.rules in enumerate(every):
            kinds = frozenset(self.rules.kinds)
            self.last_plan = None if self.plans is None else self.priced + self.plans
            self.ends_s = None if self.budget_s is None else self.budget_s * (number + 1) / len(every)
            drafts = [
                *starts(self.costs, self.rules, self.weights, tried),
                *(Draft.of(self.costs, plan) for used, plan in given if used == kinds),
            ]
            fewer = [best[kinds - {kind}] for kind in self.rules.kinds if kind != TABLE_WISE]
            best[kinds] = self._improve(drafts, fewer)
        draft, score = best[kinds]
        step_us = self._step_us(draft)
        plans = {d.plan("search"): s for d, s in best.values() if s <= score * (1 + C.QUICK_ERROR)}
        plan, *rivals = sorted(plans, key=lambda plan: plans[plan])
        return Found(
            plan, step_us, self.bound_us, self.priced, self._seconds(), self._fits(draft), self.timed_out,
            tuple(rivals) if self._fits(draft) else (),
        )  # fmt: skip

    def _improve(self, drafts: Sequence[Draft], fewer: Sequence[tuple[Draft, float]]) -> tuple[Draft, float]:
        """The best draft with these rules, from new drafts and the best ones of fewer kinds."""
        rng = np.random.default_rng(self.seed)
        self.best: Draft | None = None
        self.best_us, self.best_score = float("inf"), float("inf")
        for start, score in self._starts(drafts, fewer):
            self._keep(start, score)
            if self._over(0):
                break
            self._keep(*self._descend(start.copy(), score))
        idle = 0
        while not self._over(idle):
            other = shaken(self._best(), self.rules, rng)
            better = self._keep(*self._descend(other, float(self._score(other.loads())[0])))
            idle = 0 if better else idle + 1
        return self._best(), self.best_score

    def _fits(self, draft: Draft) -> bool:
        return bool((draft.loads().memory_bytes <= self.rules.memory_bytes).all())

    def _starts(
        self, drafts: Sequence[Draft], fewer: Sequence[tuple[Draft, float]]
    ) -> list[tuple[Draft, float]]:
        """The most promising drafts, best first; a packing by size where none of them fits."""
        every = list(fewer)
        if drafts:
            scores = self._score(self.costs.times(np.stack([draft.sums for draft in drafts])))
            every += zip(drafts, scores.tolist(), strict=True)
        if all(score >= C.OVERFULL for _, score in every) and (packing := packed(self.costs, self.rules)):
            every.append((packing, float(self._score(packing.loads())[0])))
        return sorted(every, key=lambda start: start[1])[:STARTS]

    def _descend(self, draft: Draft, score: float) -> tuple[Draft, float]:
        """Take the best small change until none helps."""
        while not self._over(0):
            found: list[Move | TableSharding] = []
            scores: list[FloatArray] = []
            small = changes(draft, self.rules, self.exchange_us)
            if small:
                loads = draft.loads_after(small)
                chosen = np.argsort(self._roughly(loads, self._exposed(draft)), kind="stable")[:WALKED]
                found += [small[i] for i in chosen.tolist()]
                scores.append(self._score(loads.each(itemgetter(chosen))))
            wide = spreads(draft, self.rules, self.exchange_us)
            if wide:
                found += wide
                scores.append(self._score(draft.loads_spread(wide)))
            if not found:
                break
            every = np.concatenate(scores)
            best = int(np.argmin(every))
            if not every[best] < score * (1 - 1e-6):
                break
            draft.apply(found[best])
            score = float(every[best])
            self._keep(draft, score)
        return draft, score

    def _keep(self, draft: Draft, score: float) -> bool:
        if score >= self.best_score * (1 - 1e-6):
            return False
        self.best, self.best_score = draft.copy(), score
        self.best_us = self._step_us(draft)
        if self.progress:
            self.progress(Progress(self._seconds(), self.priced, self.best_us, self.bound_us))
        return True

    def _step_us(self, draft: Draft) -> float:
        return float(self.reduce(self.pricer.times(draft.loads()))[0])

    def _score(self, loads: Loads) -> FloatArray:
        """Step time and a little evenness; of a plan that does not fit, how far it is from fitting."""
        self.priced += len(loads)
        step = self.reduce(self.pricer.times(loads))
        score = np.asarray(step + C.EVENNESS * self._evenness(loads))
        over = self._overflow(loads)
        return np.where(over > 0, C.OVERFULL * (1 + over), score)

    def _overflow(self, loads: Loads) -> FloatArray:
        """Bytes that are not there, on the worst day, as a share of a rank's room."""
        room = self.rules.memory_bytes
        over = np.maximum(loads.memory_bytes - room, 0.0).sum(axis=-1).max(axis=-1)
        return np.asarray(over / room if np.isfinite(room) else over)

    def _exposed(self, draft: Draft) -> tuple[float, ...]:
        """How much of one more µs of each load shows in this draft's step."""
        now = draft.loads()
        longer = [replace(now, **{name: 1.05 * getattr(now, name)}) for name in LOADS]
        step = self.reduce(self.pricer.times(Loads.joined([now, *longer])))
        added = [max(0.05 * self.reduce(_soft_max(us))[0], 1e-9) for us in self._waits(now)]
        return tuple(
            float(np.clip((us - step[0]) / more, C.LEAST_EXPOSED, 1.0))
            for us, more in zip(step[1:], added, strict=True)
        )

    def _roughly(self, loads: Loads, exposed: tuple[float, ...]) -> FloatArray:
        """An order of merit without a walk: the busiest ranks' loads, and memory that is not there."""
        over = self._overflow(loads)
        return np.where(over > 0, C.OVERFULL * (1 + over), self._evenness(loads, exposed))

    def _evenness(self, loads: Loads, exposed: tuple[float, ...] = (1.0,) * len(LOADS)) -> FloatArray:
        """What the step waits for: the busiest rank of each load, the next ones too."""
        waits = [weight * _soft_max(us) for weight, us in zip(exposed, self._waits(loads), strict=True)]
        return self.reduce(np.sum(waits, axis=0))

    def _waits(self, loads: Loads) -> tuple[FloatArray, ...]:
        """What ranks take for each of `LOADS`."""
        exchange = 2 * self.exchange_us * loads.columns
        return loads.forward_us, loads.backward_us, exchange, self.pricer.copy_us(loads)

    def _exchange_us_per_column(self) -> float:
        """What one more pooled column on a rank adds to an even exchange."""
        costs = self.costs
        even = costs.times(costs.matrix[: len(costs.tables)].sum(axis=0)[None, :, None] / costs.ranks)
        return self.pricer.exchange_us_per_column(even.each(lambda us: us.repeat(costs.ranks, axis=-1)))

    def _best(self) -> Draft:
        if self.best is None:
            raise RuntimeError("no plan has been priced yet")
        return self.best

    def _over(self, idle: int) -> bool:
        if self.ends_s is not None and self._seconds() >= self.ends_s:
            self.timed_out = True
            return True
        if self.last_plan is not None and self.priced >= self.last_plan:
            return True
        if self.best_us <= self.bound_us * (1 + C.CLOSE_ENOUGH) and self.best_score < C.OVERFULL:
            return True
        return self.costs.ranks == 1 or idle >= SHAKES

    def _seconds(self) -> float:
        return time.perf_counter() - self.began


def _soft_max(load: FloatArray) -> FloatArray:
    """Nearly the busiest rank's load, but the next ones count too."""
    top = np.maximum(load.max(axis=-1, keepdims=True), 1e-12)
    return np.asarray(top[..., 0] * ((load / top) ** 8).mean(axis=-1) ** (1 / 8))


def search_simulated(
    pricer: PlanPricer, rules: Rules, standard: Sequence[Plan], *, objective: str = "mean",
    plans: int | None = None, budget_s: float | None = None,
) -> Found:  # fmt: skip
    """The best plan near the best of ``standard``, each simulated by itself.

    A stack that treats some rank differently (NVIDIA's example runs the bottom MLP on rank 0 alone) has no
    common program in which only lookups and exchanges change. So few plans are priced: whole tables of the
    busiest ranks change places, and any of their tables the way it is sharded, until nothing helps.
    """
    costs, began, priced = pricer.costs, time.perf_counter(), 0

    def seconds() -> float:
        return time.perf_counter() - began

    def over() -> bool:
        return priced >= (plans or SIMULATED_PLANS) or (budget_s is not None and seconds() >= budget_s)

    def fits(plan: Plan) -> bool:
        return bool((plan.memory_bytes(costs.tables, costs.optimizer) <= rules.memory_bytes).all())

    def step_us(plan: Plan) -> float:
        nonlocal priced
        priced += 1
        return float(OBJECTIVES[objective](pricer.simulated_days_us(plan))) if fits(plan) else float("inf")

    best, best_us = min(((plan, step_us(plan)) for plan in standard), key=lambda found: found[1])
    improved = True
    while improved and not over():
        improved = False
        for plan in filter(fits, _neighbours(pricer, rules, best)):
            if over():
                break
            us = step_us(plan)
            if us < best_us * (1 - 1e-4):
                best, best_us, improved = plan, us, True
                break
    timed_out = budget_s is not None and seconds() >= budget_s
    return Found(best.named("search"), best_us, None, priced, seconds(), fits(best), timed_out)


def _neighbours(pricer: PlanPricer, rules: Rules, plan: Plan) -> Iterator[Plan]:
    """A table moved, sharded otherwise, or two swapped, from the ranks with the longest lookups first."""
    loads = pricer.costs.loads([plan])
    busy = (loads.forward_us + loads.backward_us + pricer.exchange_us(loads))[0].mean(axis=0)
    order = np.argsort(-busy, kind="stable").tolist()
    hot, cold = order[: max(len(order) // 4, 1)], order[::-1][: max(len(order) // 2, 1)]
    for source in hot:
        for shard in _whole(plan, source):
            yield from (_moved(plan, {shard.table: target}) for target in cold if target != source)
    for source in hot:
        yield from _sharded_otherwise(pricer, rules, plan, source, cold[0])
    for source, target in product(hot, cold):
        if target != source:
            for mine, theirs in product(_whole(plan, source), _whole(plan, target)):
                yield _moved(plan, {mine.table: target, theirs.table: source})


def _whole(plan: Plan, rank: int) -> list[Shard]:
    """Tables that lie on this rank alone."""
    return [shard for shard in plan.on_rank(rank) if shard.kind == TABLE_WISE]


def _sharded_otherwise(
    pricer: PlanPricer, rules: Rules, plan: Plan, source: int, coldest: int
) -> Iterator[Plan]:
    """Each table of a rank spread in the other ways that the rules allow, or brought to one rank."""
    costs = pricer.costs
    number = {table.name: i for i, table in enumerate(costs.tables)}
    for shard in plan.on_rank(source):
        table = costs.tables[number[shard.table]]
        whole = Shard(table.name, coldest, (0, table.dim), (0, table.rows))
        ways = [[whole]] if shard.kind != TABLE_WISE else []
        ways += [
            [replace(whole, rank=rank, rows=rows, kind=spread.kind) for rank, rows in holders(costs, spread)]
            for spread in rules.spreads(costs, number[table.name])
            if spread.kind != shard.kind
        ]
        rest = tuple(s for s in plan.shards if s.table != table.name)
        yield from (Plan(plan.ranks, (*rest, *shards)) for shards in ways)


def _moved(plan: Plan, rank_of: Mapping[str, int]) -> Plan:
    shards = tuple(replace(s, rank=rank_of.get(s.table, s.rank)) for s in plan.shards)
    return Plan(plan.ranks, shards, plan.sharder)
