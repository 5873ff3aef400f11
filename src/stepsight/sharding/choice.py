"""The choice of a plan: the winner, the runners-up, and why each of them loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform
from stepsight.prediction.embedding import EmbeddingFigures, embedding_figures
from stepsight.sharding.loads import Loads
from stepsight.sharding.rules import USUAL_KINDS, Rules, check_fits
from stepsight.sharding.search import OBJECTIVES, Found, Progress, search, search_simulated
from stepsight.sharding.steps import PlanPricer
from stepsight.sharding.tiers import hosted_bytes, with_tiers
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE, Plan, plan_dict, plan_summary
from stepsight.tables.sharders import PLACEMENTS, SHARDERS
from stepsight.tables.table import Table
from stepsight.terminal import counted
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import HUGECTR_STACK, JOINT_STACK, OWN_PROGRAMS
from stepsight.workload.files import resolve

C = area("sharding")
STACK_KINDS = {JOINT_STACK: (TABLE_WISE,), HUGECTR_STACK: (TABLE_WISE, ROW_WISE, DATA_PARALLEL)}
"""Ways of sharding of stacks that do not have all of them."""


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """One plan with its predicted step, its ranks' loads, and why it is not the winner.

    Per-rank figures are means over the days; ``day_us`` is the step time of each day.
    """

    name: str
    plan: Plan
    step_us: float
    day_us: tuple[float, ...]
    lookup_us: tuple[float, ...]
    exchange_us: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    fits: bool
    why: str

    @property
    def imbalance(self) -> float:
        """How much more lookup time the busiest rank has than the mean one, as a fraction."""
        mean = float(np.mean(self.lookup_us))
        return max(self.lookup_us) / mean - 1 if mean > 0 else 0.0

    def to_dict(self, winner: PlanCandidate) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        each = zip(self.lookup_us, self.exchange_us, self.memory_bytes, strict=True)
        names = ("lookup_us", "exchange_us", "memory_bytes")
        return {
            "name": self.name,
            "step_time_us": self.step_us,
            "day_us": list(self.day_us),
            "slower": self.step_us / winner.step_us - 1,
            "fits": self.fits,
            "why": self.why,
            "imbalance": self.imbalance,
            "kinds": plan_summary(self.plan),
            "ranks": [{"rank": r, **dict(zip(names, values, strict=True))} for r, values in enumerate(each)],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """The winner first, then everything else by its step time; ``room_bytes`` is a rank's for tables,
    ``hosted_bytes`` what lies in host memory, of all nodes together: rows and optimizer state."""

    workload: str
    platform: str
    candidates: tuple[PlanCandidate, ...]
    found: Found
    objective: str
    days: int
    room_bytes: float
    ranks: int
    tables: int
    figures: EmbeddingFigures | None = None
    hosted_bytes: float = 0.0

    def __repr__(self) -> str:
        return (
            f"<Choice {self.workload} on {self.platform}: {self.winner.name} of {len(self.candidates)} plans>"
        )

    @property
    def winner(self) -> PlanCandidate:
        return self.candidates[0]

    @property
    def level(self) -> bool:
        """Whether the step hardly depends on the plan: host, dense part or link decide."""
        return _level([c.step_us for c in self.candidates if c.fits])

    def to_dict(self) -> dict[str, Any]:
        """Everything that the console shows, and the winning plan itself."""
        found = self.found
        return {
            "workload": self.workload,
            "platform": self.platform,
            "ranks": self.ranks,
            "tables": self.tables,
            "objective": self.objective,
            "days": self.days,
            "step_time_us": self.winner.step_us,
            "lower_bound_us": found.bound_us,
            "gap": found.gap,
            "plans_priced": found.priced,
            "search_seconds": found.seconds,
            "room_bytes": self.room_bytes,
            "hosted_bytes": self.hosted_bytes,
            "level": self.level,
            "winner": self.winner.name,
            "candidates": [one.to_dict(self.winner) for one in self.candidates],
            "plan": plan_dict(self.winner.plan),
            "embedding": msgspec.to_builtins(self.figures) if self.figures else None,
        }


def _kinds_of(stack: str, kinds: Sequence[str]) -> Sequence[str]:
    """Those that the stack has: all that it has where all are allowed."""
    known = STACK_KINDS.get(stack, USUAL_KINDS)
    if tuple(kinds) == USUAL_KINDS:
        return known
    if missing := [kind for kind in kinds if kind in USUAL_KINDS and kind not in known]:
        raise InputError(
            "kinds", f"stack = {stack!r} has no {missing[0]}", f"name some of {', '.join(known)}"
        )
    return kinds


def choose(
    workload: DlrmWorkload, platform: Platform, *, objective: str = "mean", plans: int | None = None,
    budget_s: float | None = None, seed: int = 0, kinds: Sequence[str] = USUAL_KINDS,
    days: Sequence[Sequence[Table]] = (), also: Sequence[Plan] = (),
    progress: Callable[[Progress], None] | None = None, host_memory: bool = False, host_gb: float = inf,
) -> Choice:  # fmt: skip
    """Search for a plan, and compare it with the sharders' (and ``also``) plans.

    The search ends after pricing ``plans`` for each combination of kinds, so that a seed gives one answer; or
    after ``budget_s`` seconds. ``host_memory``: tables that do not fit on the devices may lie in host memory,
    ``host_gb`` of each node, and then on a drive (`stepsight.sharding.tiers`).
    """
    if objective not in OBJECTIVES:
        raise InputError("objective", f"is {objective!r}", f"one of {', '.join(OBJECTIVES)}")
    if not workload.tables:
        raise InputError(workload.name, "has no embedding tables to place", "add [[tables]]")
    resolved = resolve(workload, platform.spec.ranks)
    assert isinstance(resolved, DlrmWorkload)
    workload = resolved
    kinds = _kinds_of(workload.config.stack, kinds)
    platform = platform.with_ranks(workload.ranks)
    for plan in also:
        _check_given(plan, workload)
    room_bytes = table_room(workload, platform)
    if host_memory:
        config = workload.config
        if config.stack in OWN_PROGRAMS:
            problem = f"stack = {config.stack!r} keeps its tables on the devices"
            raise InputError("--host-memory", problem, "use more GPUs, or another stack")
        placed = with_tiers(
            config.tables, platform.spec.gpu, batch=config.batch, optimizer=config.sparse_optimizer,
            room_bytes=room_bytes * config.ranks,
            host_bytes=host_gb * 1e9 * -(-config.ranks // platform.spec.gpus_per_node),
        )  # fmt: skip
        workload = DlrmWorkload(replace(config, tables=placed))
        days = [
            [replace(t, placement=p.placement, cache_share=p.cache_share)
             for t, p in zip(day, placed, strict=True)]
            for day in days
        ]  # fmt: skip
    for plan in also:
        if plan.tiers and set(plan.tiers) != set(plan.with_tiers_of(workload.tables).tiers):
            raise InputError(
                f"plan {plan.sharder or 'given'}", "keeps tables in other memory than this search does",
                "predict it by itself: sharding = { file = … }",
            )  # fmt: skip
    pricer = PlanPricer(workload, platform, days)
    rules = Rules(room_bytes, tuple(kinds))
    hosted = workload.config.stack not in OWN_PROGRAMS
    check_fits(pricer.costs, rules, platform.spec.gpu.usable_bytes, platform.spec.ranks, hosted)
    usual = [sharder(workload.tables, workload.ranks) for sharder in SHARDERS.values()] + list(also)
    if workload.config.stack in OWN_PROGRAMS:
        own = PLACEMENTS[workload.config.stack](workload.tables, workload.ranks), workload.plan
        allowed = [plan for plan in own if {shard.kind for shard in plan.shards} <= {TABLE_WISE, *kinds}]
        usual = list({plan.shards: plan for plan in (*usual, *allowed)}.values())
        found = search_simulated(pricer, rules, usual, objective=objective, plans=plans, budget_s=budget_s)
    else:
        found = search(
            pricer, rules, plans=plans, budget_s=budget_s, seed=seed, objective=objective, also=usual,
            progress=progress,
        )  # fmt: skip
    if not found.fits:
        raise InputError("tables", *_nowhere(pricer, rules, found.plan))
    searched = found.plan
    if found.rivals:
        step_us = [OBJECTIVES[objective](pricer.simulated_days_us(p)) for p in (searched, *found.rivals)]
        searched = (searched, *found.rivals)[int(np.argmin(step_us))]
    ranked = _ranked([searched, *usual], pricer, rules, objective)
    ranked = [replace(c, plan=c.plan.with_tiers_of(workload.tables)) for c in ranked]
    # A bound of the quick price, which lies within a percent of the simulation's.
    bound_us = found.bound_us and min(found.bound_us, *(c.step_us for c in ranked if c.fits))
    found = replace(found, bound_us=bound_us, step_us=ranked[0].step_us)
    return Choice(
        workload.name, platform.name, tuple(ranked), found, objective,
        len(pricer.costs.days),
        rules.memory_bytes, workload.ranks, len(workload.tables),
        embedding_figures(replace(workload.config, tables=pricer.costs.tables), ranked[0].plan, platform),
        hosted_bytes(workload.tables, workload.config.sparse_optimizer),
    )  # fmt: skip


def _check_given(plan: Plan, workload: DlrmWorkload) -> None:
    where = f"plan {plan.sharder or 'given'}"
    if plan.ranks != workload.ranks:
        raise InputError(
            where,
            f"is for {counted(plan.ranks, 'rank')}, the workload has {workload.ranks}",
            "make them agree",
        )
    plan.check(workload.tables, where)


def table_room(workload: DlrmWorkload, platform: Platform) -> float:
    """Bytes that each rank has left for tables next to the dense part."""
    report = workload.memory()
    dense_bytes = max(rank.total - rank.tables for rank in report.ranks)
    usable = platform.spec.gpu.usable_bytes
    room = usable - dense_bytes
    if room <= 0:
        raise InputError(
            workload.name,
            f"the dense part alone takes {dense_bytes / 1e9:.1f} GB of {usable / 1e9:.1f} GB usable",
            "use a smaller batch or more ranks",
        )
    return float(room)


def days_of(tables: Sequence[Table], files: Sequence[str | Path]) -> tuple[tuple[Table, ...], ...]:
    """The tables once per index file: table i reads the file's i-th stream."""
    return tuple(
        tuple(replace(t, indices=IndexDistribution.file(str(path), i)) for i, t in enumerate(tables))
        for path in files
    )


def _ranked(plans: Sequence[Plan], pricer: PlanPricer, rules: Rules, objective: str) -> list[PlanCandidate]:
    """By their step, of the same step (all, where the step hardly depends on the plan) the most even lookups
    first; those that do not fit last."""
    loads = pricer.costs.loads(plans)
    day_us = np.array([pricer.simulated_days_us(plan) for plan in plans])
    step_us = OBJECTIVES[objective](day_us)
    fits = [bool((memory <= rules.memory_bytes).all()) for memory in loads.memory_bytes]
    busiest_us = (loads.forward_us + loads.backward_us).mean(axis=1).max(axis=-1)
    shown_us = np.zeros(len(plans)) if _level(step_us[fits].tolist()) else step_us.round(2)
    order = sorted(range(len(plans)), key=lambda i: (not fits[i], shown_us[i], busiest_us[i], i))
    best = order[0]
    exchange = pricer.exchange_us(loads)
    candidates = []
    for i in order:
        why = "" if i == best else _why(pricer, rules, loads, step_us, best, i, objective, fits[i])
        candidates.append(
            PlanCandidate(
                plans[i].sharder, plans[i], float(step_us[i]), tuple(day_us[i].tolist()),
                tuple((loads.forward_us + loads.backward_us)[i].mean(axis=0).tolist()),
                tuple(exchange[i].mean(axis=0).tolist()),
                tuple(loads.memory_bytes[i].max(axis=0).tolist()), fits[i], why,
            )
        )  # fmt: skip
    return candidates


def _level(step_us: Sequence[float]) -> bool:
    return len(step_us) > 1 and max(step_us) <= min(step_us) * (1 + C.LEVEL)


def _why(
    pricer: PlanPricer, rules: Rules, loads: Loads, step_us: FloatArray, best: int, this: int,
    objective: str, fits: bool,
) -> str:  # fmt: skip
    """What the plan would gain with the winner's lookups, and with the winner's exchange."""
    if not fits:
        memory = loads.memory_bytes[this].max(axis=0)
        rank = int(np.argmax(memory))
        over = memory[rank] - rules.memory_bytes
        return f"memory: rank {rank} is {over / 1e9:.1f} GB over"
    slower = step_us[this] / step_us[best] - 1
    if slower < C.LEVEL:
        return "same time"
    mine, theirs = (loads.each(itemgetter([i])) for i in (this, best))
    swapped = {
        "lookup": replace(mine, forward_us=theirs.forward_us, backward_us=theirs.backward_us),
        "exchange": replace(mine, columns=theirs.columns, node_columns=theirs.node_columns),
        "gradients": replace(mine, gradient_bytes=theirs.gradient_bytes),
    }
    gains = {
        cause: float(step_us[this] - OBJECTIVES[objective](pricer.times(changed))[0])
        for cause, changed in swapped.items()
    }
    cause = max(gains, key=lambda name: gains[name])
    return _words(cause, gains[cause] / float(step_us[best]), mine)


def _words(cause: str, share: float, loads: Loads) -> str:
    if share < C.LEVEL:
        return "several small causes together"
    if cause == "gradients":
        return "all_reduce of replicated tables"
    values = loads.forward_us + loads.backward_us if cause == "lookup" else loads.columns
    by_rank = values[0].mean(axis=0)
    rank = int(np.argmax(by_rank))
    over = by_rank[rank] / by_rank.mean() - 1
    word = "imbalance" if cause == "lookup" else "all_to_all"
    return f"{word}: rank {rank} is {100 * over:.0f} % over the mean"


def _nowhere(pricer: PlanPricer, rules: Rules, plan: Plan) -> tuple[str, str]:
    """Problem and fix where the tables fit in all but no allowed plan packs them."""
    memory = pricer.costs.loads([plan]).memory_bytes[0].max(axis=0)
    rank = int(np.argmax(memory))
    over = memory[rank] - rules.memory_bytes
    problem = (
        f"the best packing leaves rank {rank} with {memory[rank] / 1e9:.1f} GB of "
        f"{rules.memory_bytes / 1e9:.1f} GB: {over / 1e9:.1f} GB too much"
    )
    missing = [kind for kind in USUAL_KINDS if kind not in rules.kinds]
    fix = (
        f"allow {', '.join(missing)}"
        if missing
        else f"use more than {counted(pricer.ranks, 'rank')} or smaller tables"
    )
    return problem, fix
