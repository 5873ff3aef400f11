"""``stepsight.learn``: a platform's factors from its own runs, and how well they predict runs left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.constants import area
from stepsight.platform.conditions import LEAST_FACTOR, MOST_FACTOR, Learned
from stepsight.platform.evidence import PARTS, WORDS, Evidence, learned_text
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import INTERVAL_SIGMAS
from stepsight.prediction.learn.response import averaged
from stepsight.prediction.learn.runs import Run, read_runs
from stepsight.prediction.learn.stack import NOTHING, Stack, fit
from stepsight.prediction.predict import predict

FASTER = 0.98
"""Of a prediction: runs that learning makes faster than this are predicted again."""
FAR_OFF = 2.0
"""Runs that all differ from their predictions by more than this factor, one way, ran something else."""
KS = (0, 1, 2, 3, 5, 10)
"""Numbers of runs that the curve is drawn for."""
DRAWS = 20
"""Random choices of the runs that are learned from, for each number."""
MOST_SCORED = 100
"""Other runs that each choice is scored on."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run with its prediction before and after learning, and the interval after."""

    name: str
    measured_us: float
    before_us: float
    after_us: float
    low_us: float
    high_us: float
    left_out: bool = False

    @property
    def error_before(self) -> float:
        return self.before_us / self.measured_us - 1

    @property
    def error_after(self) -> float:
        return self.after_us / self.measured_us - 1

    @property
    def inside(self) -> bool:
        return self.low_us <= self.measured_us <= self.high_us

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"error_before": self.error_before, "error_after": self.error_after}


@dataclass(frozen=True, slots=True, repr=False)
class Lesson:
    """What runs taught about a platform. ``rows`` are the runs that were learned from, predicted again."""

    platform: Platform
    based_on: str
    learned: Learned
    evidence: Evidence
    rows: tuple[RunResult, ...]

    def __repr__(self) -> str:
        return f"<Lesson of {self.evidence.runs} runs on {self.based_on}>"

    def text(self, name: str) -> str:
        """The platform file."""
        return learned_text(self.learned, self.evidence, self.based_on, name)

    def to_dict(self) -> dict[str, Any]:
        one = self.evidence
        return {
            "platform": self.based_on,
            "runs": one.runs,
            "factors": {part: getattr(self.learned, part) for part in PARTS},
            "spreads": {part: one.spread(part) for part in PARTS},
            "unexplained": one.unexplained,
            "shared": one.shared,
            "recipe": one.recipe,
            "recipe_probability": one.probability,
            "other_recipes": {its.recipe or "usual": its.probability for _, its in one.others},
            "memory": self.learned.memory,
            "left_out": list(one.left_out),
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Runs that are all far off in the same direction rarely ran what is described; rows that leave the
        training stack open may have run another."""
        return (*self._doubt(), *self._stacks())

    def _doubt(self) -> Iterator[str]:
        logs = [math.log(row.measured_us / row.before_us) for row in self.rows]
        if not logs or min(map(abs, logs)) < math.log(FAR_OFF) or min(logs) * max(logs) < 0:
            return
        times = math.exp(float(np.median(logs)))
        yield (
            f"every run takes about {times:.2g} times its prediction: check that {self.based_on} is the"
            " platform they ran on, and that each row states its layout and batch"
        )

    def _stacks(self) -> Iterator[str]:
        tried = (self.evidence, *(its for _, its in self.evidence.others))
        if any(its.recipe for its in tried):
            named = ", ".join(
                f"{its.recipe or 'the usual one'} {100 * its.probability:.0f} %" for its in tried
            )
            yield (
                f"the rows name no training stack; recipes they may have run: {named}. Write yours into a"
                " column training.recipe"
            )

    @property
    def moved(self) -> list[tuple[str, float, float]]:
        """Parts that the runs moved or made surer, with factor and spread, the most certain change first."""
        usual = np.sqrt(np.diag(fit(())[0].found.evidence.matrix))
        found = []
        for part, before in zip(PARTS, usual, strict=True):
            factor, spread = getattr(self.learned, part), self.evidence.spread(part)
            if spread < 0.9 * before or abs(math.log(factor)) > 0.02:
                found.append((WORDS[part], factor, spread))
        return sorted(found, key=lambda one: -abs(math.log(one[1])) / one[2])


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean error of runs not learned from, and the share of them inside the interval."""

    runs: int
    mape: float
    inside: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Every run predicted without learning and with all others learned from, and the curve."""

    platform: str
    rows: tuple[RunResult, ...]
    curve: tuple[CurvePoint, ...]

    @property
    def mape_before(self) -> float:
        return float(np.mean([abs(r.error_before) for r in self.rows]))

    @property
    def mape_after(self) -> float:
        return float(np.mean([abs(r.error_after) for r in self.rows]))

    @property
    def inside(self) -> float:
        return float(np.mean([r.inside for r in self.rows]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "platform": self.platform,
            "runs": len(self.rows),
            "mape_without_learning": self.mape_before,
            "mape_others_learned": self.mape_after,
            "inside": self.inside,
            "curve": [asdict(point) for point in self.curve],
            "rows": [row.to_dict() for row in self.rows],
        }


def learn(runs: str | Path, platform: str | Path, overrides: Sequence[str] = ()) -> Lesson:
    """Learn a platform's factors from the runs of a CSV file.

    >>> lesson = learn("runs.csv", "4x8xH100-SXM-400G")  # doctest: +SKIP
    >>> Path("mine.toml").write_text(lesson.text("mine"))  # doctest: +SKIP
    """
    rows = read_runs(runs, platform, tuple(overrides))
    stacks = fit(rows)
    left = stacks[0].found.left_out
    results = tuple(result(run, stacks, left_out=i in left) for i, run in enumerate(rows))
    left_out = tuple(
        f"{one.name}: measured {one.measured_us / 1e3:.1f} ms,"
        f" {one.measured_us / one.after_us:.2f} times what the other runs say"
        for one in results
        if one.left_out
    )
    (learned, evidence), *others = (_learned(one) for one in stacks)
    evidence = replace(evidence, source=Path(runs).name, left_out=left_out, others=tuple(others))
    results = tuple(_within_peak(*pair, learned, evidence) for pair in zip(results, rows, strict=True))
    learned = replace(learned, memory=memory_factor(stacks[0].runs))
    on = replace(load_platform(platform, overrides), learned=learned, evidence=evidence)
    return Lesson(on, str(platform), learned, evidence, results)


def _within_peak(one: RunResult, run: Run, learned: Learned, evidence: Evidence) -> RunResult:
    """The run as the learned platform predicts it, where it became faster: no factor takes a kernel below the
    speed of light, which the regression does not know."""
    if one.after_us > FASTER * one.before_us or run.job is None or run.on is None:
        return one
    on = replace(run.on, learned=learned, evidence=evidence)
    found = predict(run.job, on)
    return replace(one, after_us=found.step_time_us, low_us=found.low_us, high_us=found.high_us)


def _learned(stack: Stack) -> tuple[Learned, Evidence]:
    """Factors and evidence under one recipe."""
    factors = {p: min(max(f, LEAST_FACTOR), MOST_FACTOR) for p, f in stack.found.factors.items()}
    evidence = stack.found.evidence
    return Learned(**factors), replace(evidence, recipe=stack.recipe, probability=stack.probability)


def memory_factor(rows: Sequence[Run]) -> float:
    """Measured over predicted peak memory, as far as the runs say."""
    logs = [
        math.log(run.measured_bytes / run.asked.memory_bytes)
        for run in rows
        if run.measured_bytes and run.asked.memory_bytes
    ]
    shared, by_run = area("learn").numbers("MEMORY_SPREADS")
    weight = len(logs) / by_run**2
    return math.exp(float(np.median(logs)) * weight / (weight + 1 / shared**2)) if logs else 1.0


def result(run: Run, stacks: Sequence[Stack], *, left_out: bool = False) -> RunResult:
    """A run as the factors predict it, over the stacks that it may have run."""
    one = run.observed
    mean, spread = averaged([(stack.probability, *stack.of(run)) for stack in stacks])
    after_us, reach = math.exp(mean), math.exp(INTERVAL_SIGMAS * spread)
    low_us, high_us = after_us / reach, after_us * reach
    return RunResult(one.name, one.measured_us, run.asked.step_us, after_us, low_us, high_us, left_out)


def validate_runs(
    runs: str | Path, platform: str | Path, overrides: Sequence[str] = (), *, draws: int = DRAWS,
    seed: int = 0,
) -> Validation:  # fmt: skip
    """Every run of a CSV file, with the others learned from and without."""
    rows = read_runs(runs, platform, tuple(overrides))
    results = tuple(result(run, fit([other for other in rows if other is not run])) for run in rows)
    return Validation(str(platform), results, curve(rows, draws=draws, seed=seed))


def curve(
    rows: Sequence[Run], *, draws: int = DRAWS, seed: int = 0, most_scored: int = MOST_SCORED
) -> tuple[CurvePoint, ...]:
    """Error of the runs not learned from, by how many are, drawn at random; without any, every run."""
    rng = np.random.default_rng(seed)
    points = []
    for k in (k for k in KS if k < len(rows)):
        scored: list[RunResult] = []
        for _ in range(draws if k else 1):
            order = rng.permutation(len(rows)).tolist()
            found = fit([rows[i] for i in order[:k]]) if k else NOTHING
            scored += [result(rows[i], found) for i in (order[k : k + most_scored] if k else order)]
        error = float(np.mean([abs(one.error_after) for one in scored]))
        points.append(CurvePoint(k, error, float(np.mean([one.inside for one in scored]))))
    return tuple(points)
