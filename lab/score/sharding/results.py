"""What trials of sharding plans have shown: which plan is fastest, how surely, and what a pick costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.estimate import FloatArray

SEARCHED = "search"
DIFFERENT = 0.05
"""Sharders whose measured steps spread less than this do not really differ."""


class PlanTrial(msgspec.Struct, frozen=True):
    """One plan of a task: predicted before, then measured.

    ``steps_us`` are rounds × blocks × steps. Each round builds the model anew: where its tables
    come to lie in memory changes a lookup, and stays as it is for as long as the model lives.
    """

    predicted_us: float
    steps_us: list[list[list[float]]]


class Trial(msgspec.Struct, frozen=True, dict=True):
    """One task: the sharders' plans, and the searched one.

    The blocks of all plans follow one another within a second or two, and the machine is slower or
    faster from minute to minute: what is compared is a plan's block against the mean of all plans'
    blocks of the same turn.
    """

    task: str
    seed: int
    tables: int
    batch: int
    plans: dict[str, PlanTrial]

    @cached_property
    def paired(self) -> dict[str, FloatArray]:
        """ln(block / mean plan's block of that turn), rounds × blocks."""
        logs = {
            name: np.log([[np.median(steps) for steps in of_round] for of_round in plan.steps_us])
            for name, plan in self.plans.items()
        }
        mean = np.mean(list(logs.values()), axis=0)
        return {name: log - mean for name, log in logs.items()}

    @cached_property
    def measured_us(self) -> dict[str, float]:
        """Each plan's step: the median of its blocks against the others, times the task's median block."""
        level = np.median([
            np.mean([np.log(np.median(plan.steps_us[r][b])) for plan in self.plans.values()])
            for r, of_round in enumerate(next(iter(self.plans.values())).steps_us)
            for b in range(len(of_round))
        ])  # fmt: skip
        return {name: float(np.exp(level + np.median(paired))) for name, paired in self.paired.items()}

    @property
    def repeats(self) -> dict[str, float]:
        """The standard deviation of each plan's measured step, from how much its rounds differ."""
        return {
            name: float(np.std(np.median(paired, axis=1), ddof=1) / np.sqrt(len(paired)))
            for name, paired in self.paired.items()
        }

    @property
    def sharders(self) -> list[str]:
        return [name for name in self.plans if name != SEARCHED]

    @property
    def spread(self) -> float:
        """How much slower the worst sharder is than the best, as measured."""
        times = [self.measured_us[name] for name in self.sharders]
        return max(times) / min(times) - 1

    @property
    def pick(self) -> str:
        """The sharder with the least predicted step."""
        return min(self.sharders, key=lambda name: self.plans[name].predicted_us)

    @property
    def best(self) -> str:
        """The sharder with the least measured step."""
        return min(self.sharders, key=lambda name: self.measured_us[name])

    @property
    def regret(self) -> float:
        """How much slower the pick is than the best, as measured."""
        return self.measured_us[self.pick] / self.measured_us[self.best] - 1

    @property
    def error(self) -> float:
        """Mean |predicted / measured − 1| over the plans."""
        errors = [abs(p.predicted_us / self.measured_us[name] - 1) for name, p in self.plans.items()]
        return float(np.mean(errors))

    def against_best(self, name: str) -> float:
        """A plan against the best sharder, which is chosen by all rounds but one and measured by that one.

        Of seven noisy measurements the least is too low; chosen and measured by the same rounds,
        the best sharder would look better than it is.
        """
        rounds = len(self.paired[name])
        logs = []
        for judge in range(rounds):
            others = [r for r in range(rounds) if r != judge] or [judge]
            best = min(self.sharders, key=lambda n: float(np.median(self.paired[n][others])))
            logs.append(np.median(self.paired[name][judge]) - np.median(self.paired[best][judge]))
        return float(np.exp(np.mean(logs)) - 1)


def read_trials(path: Path) -> list[Trial]:
    """Trials of earlier runs; none where the file does not exist yet."""
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Trial])
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"does not hold trials ({error})", "name another file") from None


def write_trials(path: Path, trials: Sequence[Trial]) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(trials), indent=1) + b"\n")


class Summary(msgspec.Struct, frozen=True):
    """What the trials show. Fractions; ``level`` tasks have sharders that hardly differ and are apart.

    ``repeat_noise`` is the standard deviation of one plan's measured step; two plans differ by chance by
    √2 times as much (``pair_noise``), and a searched plan that much slower counts as equal in
    ``search_level``. ``mean_search`` is the searched plan against the best sharder (`Trial.against_best`).
    """

    tasks: int
    level: int
    best: float
    within_5: float
    within_10: float
    mean_regret: float
    worst_regret: float
    random_regret: float
    repeat_noise: float
    pair_noise: float
    mean_search: float
    search_level: float


def summarise(trials: Sequence[Trial]) -> Summary:
    """The figures over all tasks whose sharders differ; noise over all plans of all tasks."""
    differ = [trial for trial in trials if trial.spread >= DIFFERENT]
    if not differ:
        raise InputError("trials", "no task has sharders that differ", "run more tasks")
    regret = np.array([trial.regret for trial in differ])
    searched = np.array([trial.against_best(SEARCHED) for trial in differ])
    noise = float(np.mean([repeat for trial in trials for repeat in trial.repeats.values()]))
    blind = [
        np.mean([t.measured_us[name] for name in t.sharders]) / t.measured_us[t.best] - 1 for t in differ
    ]
    return Summary(
        tasks=len(differ), level=len(trials) - len(differ),
        best=float(np.mean([t.pick == t.best for t in differ])), within_5=float(np.mean(regret <= 0.05)),
        within_10=float(np.mean(regret <= 0.10)), mean_regret=float(regret.mean()),
        worst_regret=float(regret.max()), random_regret=float(np.mean(blind)), repeat_noise=noise,
        pair_noise=noise * 2**0.5, mean_search=float(searched.mean()),
        search_level=float(np.mean(searched <= noise * 2**0.5)),
    )  # fmt: skip
