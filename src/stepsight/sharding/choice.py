"""The choice of a plan: the winner, the runners-up, and why each of them loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.traffic import missing_rows
from stepsight.platform.load import Platform
from stepsight.sharding.pricing.loads import Loads, TablePart
from stepsight.sharding.pricing.measured_tables import MeasuredTables
from stepsight.sharding.pricing.steps import PlanPricer
from stepsight.sharding.search.rules import USUAL_KINDS, Rules, check_fits, level_with, preferred
from stepsight.sharding.search.simulated import search_simulated
from stepsight.sharding.search.walk import OBJECTIVES, Found, Progress, search, search_careful
from stepsight.sharding.tiers import with_tiers
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.plan import DATA_PARALLEL, TABLE_WISE, Plan, Shard
from stepsight.tables.sharders import PLACEMENTS, SHARDERS
from stepsight.tables.table import DEVICE, UVM_CACHING, Table
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import JOINT_STACK, OWN_PROGRAMS
from stepsight.workload.files import resolve

_CONSTANTS = area("sharding")
LEVEL = _CONSTANTS.number("LEVEL")

SEARCHED = "search"


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


@dataclass(frozen=True, slots=True)
class TableFigures:
    """One table in the winning plan, on its first day: what is asked of it, and what that costs.

    ``lookups`` and ``unique_rows`` are of a batch, ``hit_rate`` the share of distinct rows that a cache of
    rows in host memory holds; times are sums over its shards, each alone on its rank.
    """

    name: str
    ranks: tuple[int, ...]
    kind: str
    placement: str
    cache_share: float
    lookups: float
    unique_rows: float
    hit_rate: float
    exchanged_bytes: float
    forward_us: float
    backward_us: float

    @property
    def time_us(self) -> float:
        return self.forward_us + self.backward_us

    @property
    def reuse(self) -> float:
        """Lookups per distinct row."""
        return self.lookups / max(self.unique_rows, 1.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner first, then everything else by its step time; ``room_bytes`` is a rank's for tables.

    ``measured`` is what the tables took on this machine, where that was asked for.
    """

    workload: str
    platform: str
    candidates: tuple[PlanCandidate, ...]
    found: Found
    objective: str
    days: int
    room_bytes: float
    ranks: int
    tables: int
    measured: MeasuredTables | None = None
    figures: tuple[TableFigures, ...] = ()

    @property
    def winner(self) -> PlanCandidate:
        return self.candidates[0]

    @property
    def level(self) -> bool:
        """Whether the step hardly depends on the plan: host, dense part or link decide."""
        fitting = [c.step_us for c in self.candidates if c.fits]
        return max(fitting) <= min(fitting) * (1 + LEVEL)


def _settled(workload: DlrmWorkload, platform: Platform) -> DlrmWorkload:
    """On all GPUs of the platform where the workload's file leaves the ranks open."""
    found = resolve(workload, platform.spec.ranks)
    return found if isinstance(found, DlrmWorkload) else workload


def choose(
    workload: DlrmWorkload, platform: Platform, *, objective: str = "mean", plans: int | None = None,
    budget_s: float | None = None, seed: int = 0, kinds: Sequence[str] = USUAL_KINDS,
    days: Sequence[Sequence[Table]] = (), also: Sequence[Plan] = (),
    progress: Callable[[Progress], None] | None = None,
    measure: Callable[[PlanPricer], MeasuredTables] | None = None, margin: float = 0.0,
    host_memory: bool = False,
) -> Choice:  # fmt: skip
    """Search for a plan, and compare it with the sharders' (and ``also``) plans.

    The search ends after pricing ``plans`` (by default by the number of tables), so that a seed gives one
    answer; or after ``budget_s`` seconds. ``measure`` looks the workload's tables up before any plan is
    priced. Of all plans within a share of ``margin`` of the best the simplest wins. ``host_memory``: tables
    that do not fit on the devices may lie in host memory (`stepsight.sharding.tiers`).
    """
    if objective not in OBJECTIVES:
        raise InputError("objective", f"is {objective!r}", f"one of {', '.join(OBJECTIVES)}")
    if not workload.tables:
        raise InputError(workload.name, "has no embedding tables to place", "add [[tables]]")
    workload = _settled(workload, platform)
    if workload.config.stack == JOINT_STACK:  # which holds whole tables alone
        kinds = (TABLE_WISE,)
    platform = platform.with_ranks(workload.ranks)
    for plan in also:
        _check_given(plan, workload)
    room_bytes = table_room(workload, platform)
    if host_memory:
        config = workload.config
        placed = with_tiers(
            config.tables, platform.spec.gpu, batch=config.batch, optimizer=config.sparse_optimizer,
            room_bytes=room_bytes * config.ranks,
        )  # fmt: skip
        workload = DlrmWorkload(replace(config, tables=placed))
        days = [
            [replace(t, placement=p.placement, cache_share=p.cache_share)
             for t, p in zip(day, placed, strict=True)]
            for day in days
        ]  # fmt: skip
    pricer = PlanPricer(workload, platform, days)
    rules = Rules(room_bytes, tuple(kinds))
    check_fits(pricer.costs, rules, f"{platform.spec.gpu.memory_gb:g} GB")
    if measure:
        pricer = PlanPricer(workload, platform, days, measure(pricer))
    usual = [sharder(workload.tables, workload.ranks) for sharder in SHARDERS.values()] + list(also)
    if workload.config.stack in OWN_PROGRAMS:
        own = PLACEMENTS[workload.config.stack](workload.tables, workload.ranks), workload.plan
        usual = list({plan.shards: plan for plan in (*usual, *own)}.values())
        found = search_simulated(pricer, rules, usual, objective=objective, budget_s=budget_s)
    else:
        how = partial(search_careful, margin=margin) if margin else search
        found = how(
            pricer, rules, plans=plans, budget_s=budget_s, seed=seed, objective=objective, also=usual,
            progress=progress,
        )  # fmt: skip
    if not found.fits:
        raise InputError("tables", *_nowhere(pricer, rules, found.plan))
    ranked = _ranked([found.plan, *usual], pricer, rules, objective, careful=margin > 0)
    # A bound of the quick price, which lies within a percent of the simulation's.
    bound_us = found.bound_us and min(found.bound_us, *(c.step_us for c in ranked if c.fits))
    found = replace(found, bound_us=bound_us, step_us=ranked[0].step_us)
    return Choice(
        workload.name, platform.name, tuple(ranked), found, objective,
        len(pricer.costs.days),
        rules.memory_bytes, workload.ranks, len(workload.tables), pricer.costs.measured,
        tuple(_figures(pricer, ranked[0].plan)),
    )  # fmt: skip


def _figures(pricer: PlanPricer, plan: Plan) -> list[TableFigures]:
    """Every table of a plan, hottest first."""
    costs, shards_of = pricer.costs, dict[str, list[Shard]]()
    for shard in plan.shards:
        shards_of.setdefault(shard.table, []).append(shard)
    found = []
    for number, table in enumerate(costs.tables):
        shards = shards_of[table.name]
        parts = [costs.part(number, s.width, s.height, s.kind) for s in shards]
        times = costs.part_times(parts).sum(axis=0)
        lookup = costs.lookup(TablePart(number, table.dim, table.rows))
        unique = table.indices.stats(table.rows, lookup.lookups).unique_rows
        missed = missing_rows(lookup) if table.placement == UVM_CACHING else 0.0
        sent = sum(s.width for s in shards if s.kind != DATA_PARALLEL) * table.features
        found.append(
            TableFigures(
                table.name, tuple(s.rank for s in shards), shards[0].kind, table.placement,
                table.cache_share if table.placement == UVM_CACHING else float(table.placement == DEVICE),
                lookup.lookups, unique, 1 - missed / max(unique, 1.0),
                float(pricer.workload.config.exchange_bytes * pricer.batch * sent),
                float(times[0]), float(times[1]),
            )
        )  # fmt: skip
    return sorted(found, key=lambda f: (-f.time_us, f.name))


def _check_given(plan: Plan, workload: DlrmWorkload) -> None:
    where = f"plan {plan.sharder or 'given'}"
    if plan.ranks != workload.ranks:
        raise InputError(
            where, f"is for {plan.ranks} ranks, the workload has {workload.ranks}", "make them agree"
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


def _ranked(
    plans: Sequence[Plan], pricer: PlanPricer, rules: Rules, objective: str, *, careful: bool
) -> list[PlanCandidate]:
    """The winner first, then the others by their step; those that do not fit last.

    ``careful``: the first plan was chosen with a margin and stays the winner.
    """
    loads = pricer.costs.loads(plans)
    day_us = _simulated(plans, pricer, pricer.times(loads))
    step_us = OBJECTIVES[objective](day_us)
    fits = [bool((memory <= rules.memory_bytes).all()) for memory in loads.memory_bytes]
    order = sorted(range(len(plans)), key=lambda i: (not fits[i], step_us[i], i))
    fitting = [i for i in order if fits[i] == fits[order[0]]]
    best = 0 if careful else preferred(level_with(order[0], step_us, fitting), plans, loads)
    order.remove(best)
    exchange = pricer.exchange_us(loads)
    candidates = []
    for i in (best, *order):
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


def _simulated(plans: Sequence[Plan], pricer: PlanPricer, quick_us: FloatArray) -> FloatArray:
    """Step times as ``predict`` prints them; (plans, days).

    Tables that were measured here are known to the quick price alone, which then stays.
    """
    if pricer.costs.measured is not None:
        return quick_us
    return np.array([pricer.simulated_days_us(plan) for plan in plans])


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
    if slower < LEVEL:
        return "same time"
    mine, theirs = (Loads(*(getattr(loads, n)[[i]] for n in Loads.__slots__)) for i in (this, best))
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
    if share < LEVEL:
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
        f"allow {', '.join(missing)}" if missing else f"use more than {pricer.ranks} ranks or smaller tables"
    )
    return problem, fix
