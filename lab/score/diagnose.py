"""``python -m lab score diagnose``: synthetic faults, and how often the true cause is among the first two.

A job runs on a machine of which one condition is worse by 1.3 to 4 times, or on which one setting is not what
was described. Faults that move the step by less than 10 % are drawn again: nobody would ask. The machine is
not the one of the models: every part takes some per cent more or less than predicted (drawn from what
learning expects of an unmeasured machine), and a fault of the machine acts on its parts directly, not through
the figure of the description that a suspect changes. Each measurement has 3 % of noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import click
import numpy as np

from lab.score.frame import show
from stepsight.errors import StepsightError
from stepsight.platform.evidence import ATTENTION, EMBEDDING, GEMM, HOST, LINK, MEMORY_BOUND, NETWORK, PARTS
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.diagnosis import USUAL, Diagnosis, Examined
from stepsight.prediction.learn.regression import as_factors, part_covariance
from stepsight.prediction.learn.response import AskedStep, JobFile, ask
from stepsight.prediction.measured import parse_figure
from stepsight.score import BLIND, Figure, Score

TOPIC = "diagnose"
FAULTS, SEED, NOISE, LEAST_MOVE = 40, 11, 0.03, 0.10
SEVERITY = (1.3, 4.0)
BAR, USUAL_BAR = 34, 0.9


@dataclass(frozen=True, slots=True)
class _Job:
    file: JobFile
    platform: str

    @property
    def on(self) -> Platform:
        return _platform(self.platform)


@cache
def _platform(name: str) -> Platform:
    return load_platform(name)


def _job(path: str, platform: str, *assignments: str) -> _Job:
    return _Job(JobFile(path, assignments), platform)


JOBS = (
    _job("examples/dlrm.toml", "8xH100-SXM"),
    _job("examples/dlrm.toml", "4xV100-SXM2", "batch=16384"),
    _job("examples/gpt2.toml", "8xA100-SXM4-40G", "training.precision=bf16"),
    _job("examples/bert.toml", "2x8xA100-SXM4-80G-200G", "training.precision=bf16"),
    _job("llama3-8b", "8xH100-SXM", "global_batch=16", "parallel.tensor=4", "parallel.micro_batch=1"),
    _job("llama3-8b", "4x8xH100-SXM-400G", "global_batch=64", "parallel.zero=3", "parallel.micro_batch=1"),
    _job("llama3-8b", "2x8xA100-SXM4-80G-200G", "global_batch=32", "parallel.zero=1", "parallel.tensor=2"),
    _job("llama3-70b", "8x8xH100-SXM-400G", "global_batch=64", "parallel.tensor=8", "parallel.pipeline=4"),
)
"""Jobs that depend on different things: the host, links, the network, GEMMs."""


COMPUTE = (GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING)
CONDITIONS: dict[str, tuple[str, ...]] = {
    "slower host": (HOST,),
    "slower link inside the node": (LINK,),
    "slower network between nodes": (NETWORK,),
    "lower power limit or clocks": (GEMM, ATTENTION),
    "slower device memory": (MEMORY_BOUND, EMBEDDING),
    "a straggler or uneven work": COMPUTE,
}
"""Faults of the machine: the parts that take longer."""
SETTINGS = {
    "no flash attention": "training.attention=eager",
    "fp32 instead of a lower precision": "training.precision=fp32",
    "gradients not overlapped": "parallel.overlap_gradients=false",
}
SAME = {"TCP instead of RDMA": "slower network between nodes"}
"""A suspect that is another one at one severity."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``moved``: the step with the fault over the one without."""

    job: _Job
    cause: str
    severity: float
    moved: float
    found: Diagnosis
    after_second: tuple[str, ...]

    @property
    def first_two(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.found.suspects[:2])

    def names(self, suspects: Sequence[str]) -> bool:
        return self.cause in {SAME.get(name, name) for name in suspects} | set(suspects)


class _Bench:
    """Jobs examined once, and runs of them on machines that are not quite the models'."""

    def __init__(self) -> None:
        self._examined: dict[_Job, Examined] = {}
        self._asked: dict[tuple[_Job, tuple[str, ...]], AskedStep] = {}

    def examined(self, job: _Job) -> Examined:
        if job not in self._examined:
            self._examined[job] = Examined.of(job.file.path, job.on, job.file.assignments)
        return self._examined[job]

    def asked(self, job: _Job, *more: str) -> AskedStep:
        if (job, more) not in self._asked:
            self._asked[job, more] = ask(job.file.changed(*more).load(), job.on)
        return self._asked[job, more]

    def step_us(
        self, job: _Job, machine: Mapping[str, float], cause: str, severity: float, *more: str
    ) -> float:
        """A run with a fault; without a cause, on that machine as it is."""
        slower = dict(machine)
        for part in CONDITIONS.get(cause, ()):
            slower[part] *= severity
        setting = (SETTINGS[cause],) if cause in SETTINGS else ()
        return float(self.asked(job, *more, *setting).response.steps_us([slower])[0])


def machine(rng: np.random.Generator) -> dict[str, float]:
    """A machine close to the usual one in all its parts."""
    return as_factors(rng.multivariate_normal(np.zeros(len(PARTS)), part_covariance()))


def faults(count: int = FAULTS, seed: int = SEED, bench: _Bench | None = None) -> list[Fault]:
    """Faults drawn at random, each diagnosed from its step, and again with the second measurement."""
    rng, bench = np.random.default_rng(seed), bench or _Bench()
    causes = [*CONDITIONS, *SETTINGS]
    found: list[Fault] = []
    while len(found) < count:
        job = JOBS[rng.integers(len(JOBS))]
        cause = causes[rng.integers(len(causes))]
        severity = float(np.exp(rng.uniform(*np.log(SEVERITY))))
        noise = np.exp(NOISE * rng.standard_normal(2)).tolist()
        made = _fault(bench, job, machine(rng), cause, severity, noise)
        if made is not None:
            found.append(made)
    return found


def _fault(
    bench: _Bench, job: _Job, on: Mapping[str, float], cause: str, severity: float, noise: Sequence[float]
) -> Fault | None:
    try:
        usual_us = bench.step_us(job, on, "", severity)
        faulty_us = bench.step_us(job, on, cause, severity)
    except StepsightError:
        return None
    if faulty_us < (1 + LEAST_MOVE) * usual_us:
        return None
    measured = parse_figure(f"{faulty_us * noise[0]}us")
    examined = bench.examined(job)
    first = both = examined.explain(measured)
    if first.tell_apart is not None:
        more = first.tell_apart.assignments
        try:
            again = f"{bench.step_us(job, on, cause, severity, *more) * noise[1]}us"
            both = examined.explain(measured, also=[(more, again)])
        except StepsightError:
            pass
    second = tuple(s.name for s in both.suspects[:2])
    return Fault(job, cause, severity, faulty_us / usual_us, first, second)


def nothing_wrong(count: int = FAULTS, seed: int = SEED + 1, bench: _Bench | None = None) -> float:
    """The share of runs without a fault with that verdict."""
    rng, bench = np.random.default_rng(seed), bench or _Bench()
    right = 0
    for _ in range(count):
        job = JOBS[rng.integers(len(JOBS))]
        step_us = bench.step_us(job, machine(rng), "", 1.0) * math.exp(NOISE * rng.standard_normal())
        right += bench.examined(job).explain(parse_figure(f"{step_us}us")).verdict == USUAL
    return right / count


def scores() -> list[Score]:
    """The lines of the scoreboard."""
    bench = _Bench()
    return lines(faults(bench=bench), nothing_wrong(bench=bench))


def lines(found: Sequence[Fault], usual: float) -> list[Score]:
    """How often the cause is found, and no fault where there is none."""
    right, later = _right(found)
    used = f"{len(found)} synthetic faults, noise {NOISE:.0%}"
    return [
        _line("true cause among the first two, from the step time", right / len(found), BAR / FAULTS, used),
        _line("the same with the second measurement", later / len(found), BAR / FAULTS, used),
        _line("no fault where nothing is wrong", usual, USUAL_BAR, f"{FAULTS} runs, noise {NOISE:.0%}"),
    ]


def _right(found: Sequence[Fault]) -> tuple[int, int]:
    """Faults whose cause is among the first two: from the step time, and with the second measurement."""
    return sum(f.names(f.first_two) for f in found), sum(f.names(f.after_second) for f in found)


def _line(name: str, value: float, bar: float, used: str) -> Score:
    figure = Figure("share", value, "more")
    return Score.reading(TOPIC, name, FAULTS, figure, used, bar=bar, exposure=BLIND)


@click.command(TOPIC, help="Synthetic faults: the true cause among the first two suspects.")
@click.option("--faults", "count", default=FAULTS, show_default=True)
@click.option("--seed", default=SEED, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(count: int, seed: int, as_json: bool) -> None:
    bench = _Bench()
    found, usual = faults(count, seed, bench), nothing_wrong(count, seed + 1, bench)
    right, later = _right(found)
    each = [
        {"workload": str(f.job.file.path), "platform": f.job.platform, "cause": f.cause,
         "severity": f.severity, "moved": f.moved, "first_two": list(f.first_two),
         "after_second": list(f.after_second)}
        for f in found
    ]  # fmt: skip
    if not as_json:
        for one in each:
            click.echo(", ".join(f"{name} {value}" for name, value in one.items()))
    document = {"faults": count, "in_first_two": right, "after_second": later, "usual": usual, "each": each}
    show(lines(found, usual), document if as_json else None, as_json=as_json)
