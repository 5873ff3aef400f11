"""Sharding tasks tried for real: predict every plan, then train them all here and compare.

The plans of one task are trained by the same ranks in interleaved blocks, so that the
machine's slow minutes fall on all of them alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepsight.errors import InputError
from stepsight.platform.load import Platform
from stepsight.sharding.plan import COLUMN_WISE, TABLE_WISE, Plan
from stepsight.sharding.retabled import task_workload
from stepsight.sharding.rules import Rules
from stepsight.sharding.search import search
from stepsight.sharding.sharders import SHARDERS
from stepsight.sharding.steps import PlanPricer
from stepsight.sharding.tasks import Scale, Task, random_task
from stepsight.workload.dlrm import DlrmWorkload

if TYPE_CHECKING:
    from stepsight.run.ranks import Ranks

SEARCHED = "search"
LIVE_SCALE = Scale(
    dims=(32, 64, 128), batches=(1024,), least_rows=20_000, most_rows=500_000, most_pooling=80.0,
    tables_per_rank=(3, 7), most_table_bytes=40 << 20,
)  # fmt: skip
"""METHOD §7 scaled to ranks of one CPU core: the tables of a task take about 300 MB, far beyond
the caches, and a step takes some tens of milliseconds."""
FEATURES, BOTTOM, TOP = 64, (64, 32), (64, 1)
"""A dense part small enough that tables decide, as they do in heavy production models."""
DIFFERENT = 0.05
"""Sharders whose measured steps spread less than this do not really differ."""
DRAWN_APART = 0.10
"""Tasks are drawn until the predicted steps of their sharders spread by this much."""


Placement = frozenset[tuple[tuple[str, int], ...]]


class PlanTrial(msgspec.Struct, frozen=True):
    """One plan of a task: predicted before, then measured.

    ``steps_us`` holds every step (its slowest rank) by round. Each round builds the model anew:
    where its tables come to lie in memory changes a lookup by some percent, and stays as it is
    for as long as the model lives.
    """

    predicted_us: float
    steps_us: list[list[float]]

    @property
    def round_us(self) -> list[float]:
        """The median step of each round."""
        return [float(np.median(steps)) for steps in self.steps_us]

    @property
    def measured_us(self) -> float:
        """The median over rounds."""
        return float(np.median(self.round_us))

    @property
    def repeat(self) -> float:
        """The standard deviation of the measured step, from how much the rounds differ."""
        return float(np.std(np.log(self.round_us), ddof=1) / np.sqrt(len(self.round_us)))


class Trial(msgspec.Struct, frozen=True):
    """One task: the sharders' plans, and the searched one."""

    task: str
    seed: int
    tables: int
    batch: int
    plans: dict[str, PlanTrial]

    @property
    def sharders(self) -> dict[str, PlanTrial]:
        return {name: plan for name, plan in self.plans.items() if name != SEARCHED}

    @property
    def spread(self) -> float:
        """How much slower the worst sharder is than the best, as measured."""
        times = [plan.measured_us for plan in self.sharders.values()]
        return max(times) / min(times) - 1

    @property
    def pick(self) -> str:
        """The sharder with the least predicted step."""
        return min(self.sharders, key=lambda name: self.sharders[name].predicted_us)

    @property
    def best(self) -> str:
        """The sharder with the least measured step."""
        return min(self.sharders, key=lambda name: self.sharders[name].measured_us)

    @property
    def regret(self) -> float:
        """How much slower the pick is than the best, as measured."""
        return self.plans[self.pick].measured_us / self.plans[self.best].measured_us - 1

    @property
    def searched(self) -> float:
        """The searched plan's measured step against the best sharder's: below zero is faster."""
        return self.plans[SEARCHED].measured_us / self.plans[self.best].measured_us - 1

    def at(self, quantile: float) -> Trial:
        """The same trial with each half of the rounds read at a quantile of its steps.

        Other processes only ever make a step longer: on a busy machine a low quantile repeats
        better than the median.
        """

        def read(plan: PlanTrial) -> PlanTrial:
            halves = [[us for steps in plan.steps_us[half::2] for us in steps] for half in (0, 1)]
            return PlanTrial(plan.predicted_us, [[float(np.quantile(steps, quantile))] for steps in halves])

        plans = {name: read(plan) for name, plan in self.plans.items()}
        return Trial(self.task, self.seed, self.tables, self.batch, plans)

    def against_best(self, name: str) -> float:
        """A plan against the best sharder, which is chosen by some rounds and measured by the others.

        Of seven noisy measurements the least is too low; chosen and measured by the same rounds,
        the best sharder would look better than it is.
        """
        ratios = []
        for chosen, judged in ((0, 1), (1, 0)):
            best = min(self.sharders, key=lambda n: np.median(self.sharders[n].round_us[chosen::2]))
            mine, theirs = (np.median(self.plans[n].round_us[judged::2]) for n in (name, best))
            ratios.append(float(mine / theirs))
        return float(np.mean(ratios)) - 1


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
    rules = Rules(kinds=(TABLE_WISE, COLUMN_WISE))
    plans[SEARCHED] = search(pricer, rules, budget_s=budget_s, also=list(plans.values())).plan
    predicted = pricer.step_us(list(plans.values()))[:, 0]
    # Sharders often agree; a placement is trained once, whatever the ranks are called.
    places = {name: _placement(plan) for name, plan in plans.items()}
    first = {place: name for name, place in reversed(places.items())}
    measured: dict[Placement, list[list[float]]] = {place: [] for place in first}
    group.restart()
    for turn in range(rounds):
        order = list(first)[turn:] + list(first)[:turn]
        workloads = [_named(pricer, first[place], plans[first[place]]) for place in order]
        for place, m in zip(
            order, measure_all(group, workloads, steps=steps, blocks=blocks, warmup=2), strict=True
        ):
            measured[place].append(m.job_us.ravel().tolist())
    trials = {
        name: PlanTrial(float(us), measured[places[name]]) for name, us in zip(plans, predicted, strict=True)
    }
    return Trial(task.name, seed, len(task.tables), task.batch, trials)


def _placement(plan: Plan) -> Placement:
    """Which tables (and how many of their columns) live together."""
    return frozenset(
        tuple(sorted((s.table, s.width) for s in plan.on_rank(rank))) for rank in range(plan.ranks)
    )


def _named(pricer: PlanPricer, name: str, plan: Plan) -> DlrmWorkload:
    return DlrmWorkload(replace(pricer.workload.with_plan(plan).config, name=name))


def read_trials(path: Path) -> list[Trial]:
    """Trials of earlier runs; none where the file does not exist yet."""
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Trial])
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"does not hold trials ({error})", "name another file") from None


def write_trials(path: Path, trials: Sequence[Trial]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(trials), indent=1) + b"\n")


class Summary(msgspec.Struct, frozen=True):
    """What the trials show. Fractions; ``level`` tasks have sharders that hardly differ and are apart.

    ``repeat_noise`` is the standard deviation of one plan's measured step; two plans differ by chance by
    √2 times as much (``pair_noise``), and a plan that much slower counts as equal in ``*_level``.
    """

    tasks: int
    level: int
    best: float
    within_5: float
    within_10: float
    mean_regret: float
    worst_regret: float
    repeat_noise: float
    pair_noise: float
    search_wins: float
    search_level: float
    mean_search: float
    random_regret: float
    fair_regret: float
    fair_search: float
    fair_search_level: float

    def as_dict(self) -> Mapping[str, float]:
        return dict(msgspec.structs.asdict(self))


def summarise(trials: Sequence[Trial]) -> Summary:
    """The figures over all tasks whose sharders differ; noise over all plans of all tasks."""
    differ = [trial for trial in trials if trial.spread >= DIFFERENT]
    if not differ:
        raise InputError("trials", "no task has sharders that differ", "run more tasks")
    regret = np.array([trial.regret for trial in differ])
    searched = np.array([trial.searched for trial in differ])
    fair = np.array([trial.against_best(SEARCHED) for trial in differ])
    repeats = [plan.repeat for trial in trials for plan in trial.plans.values()]
    noise = float(np.mean(repeats))
    pair = float(noise * np.sqrt(2))
    blind = [
        np.mean([p.measured_us for p in t.sharders.values()]) / t.plans[t.best].measured_us - 1
        for t in differ
    ]
    return Summary(
        len(differ), len(trials) - len(differ), float(np.mean([t.pick == t.best for t in differ])),
        float(np.mean(regret <= 0.05)), float(np.mean(regret <= 0.10)), float(regret.mean()),
        float(regret.max()), noise, pair, float(np.mean(searched <= 0)), float(np.mean(searched <= pair)),
        float(searched.mean()), float(np.mean(blind)),
        float(np.mean([t.against_best(t.pick) for t in differ])), float(fair.mean()),
        float(np.mean(fair <= pair)),
    )  # fmt: skip
