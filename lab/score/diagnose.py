"""``python -m lab score diagnose``: synthetic faults, and how often the true cause is among the first two.

A job runs on a machine of which one condition is worse by 1.3 to 4 times (or on which one setting is not what
was described), with 3 % of noise. Faults that move the step by less than 10 % are drawn again: nobody would
ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from lab.score.frame import show
from stepsight.errors import InputError, StepsightError
from stepsight.platform.conditions import Learned
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.diagnosis import USUAL, Diagnosis, diagnose
from stepsight.prediction.learn.response import JobFile, ask
from stepsight.score import BLIND, Figure, Score

TOPIC = "diagnose"
OPTIONS = ()
FAULTS, NOISE, LEAST_MOVE = 40, 0.03, 0.10
SEVERITY = (1.3, 4.0)
BAR, USUAL_BAR = 34, 0.9


@dataclass(frozen=True, slots=True)
class _Job:
    file: JobFile
    platform: str


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


def _slower_kernels(job: _Job, severity: float) -> Platform:
    """A machine whose kernels all take longer."""
    parts = ("gemm", "attention", "memory_bound", "embedding")
    return replace(load_platform(job.platform), learned=Learned(**dict.fromkeys(parts, severity)))


def _field(name: str) -> Callable[[_Job, float], Platform]:
    """A machine with a smaller figure in its description."""

    def made(job: _Job, severity: float) -> Platform:
        value: Any = load_platform(job.platform).spec
        for part in name.split("."):
            value = getattr(value, part) if value is not None else None
        if value is None:
            raise InputError(name, "the platform has none", "draw another fault")
        return load_platform(job.platform, [f"{name}={value / severity}"])

    return made


CONDITIONS: dict[str, Callable[[_Job, float], Platform]] = {
    "slower host": _field("host.speed"),
    "slower link inside the node": _field("link.gbps"),
    "slower network between nodes": _field("nic.gbps"),
    "lower power limit or clocks": _field("gpu.power_w"),
    "slower device memory": _field("gpu.memory_gbps"),
    "a straggler or uneven work": _slower_kernels,
}
"""Faults and suspects ask the same models of kernels, collectives, power and host: this scores telling causes
apart by one or two numbers, not the models."""
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


def _faulty_us(job: _Job, cause: str, severity: float, *more: str) -> float:
    file = job.file.changed(*more)
    if cause in SETTINGS:
        return ask(file.changed(SETTINGS[cause]).load(), load_platform(job.platform)).step_us
    platform = CONDITIONS[cause](job, severity)
    from stepsight.prediction.predict import predict

    return predict(file.load(), platform).step_time_us


def faults(count: int = FAULTS, seed: int = 7) -> list[Fault]:
    """Faults drawn at random, each diagnosed from its step, and again with the second measurement."""
    rng = np.random.default_rng(seed)
    found: list[Fault] = []
    while len(found) < count:
        job = JOBS[rng.integers(len(JOBS))]
        causes = [*CONDITIONS, *SETTINGS]
        cause = causes[rng.integers(len(causes))]
        severity = float(np.exp(rng.uniform(*np.log(SEVERITY))))
        noise = np.exp(NOISE * rng.standard_normal(2))
        made = _fault(job, cause, severity, noise.tolist())
        if made is not None:
            found.append(made)
    return found


def _fault(job: _Job, cause: str, severity: float, noise: Sequence[float]) -> Fault | None:
    try:
        usual_us = ask(job.file.load(), load_platform(job.platform)).step_us
        faulty_us = _faulty_us(job, cause, severity)
    except StepsightError:
        return None
    if faulty_us < (1 + LEAST_MOVE) * usual_us:
        return None
    measured = f"{faulty_us * noise[0]}us"
    path, assignments = job.file.path, job.file.assignments
    first = diagnose(path, job.platform, measured, assignments=assignments)
    second: tuple[str, ...] = tuple(s.name for s in first.suspects[:2])
    if first.tell_apart is not None:
        more = first.tell_apart.assignments
        try:
            again = f"{_faulty_us(job, cause, severity, *more) * noise[1]}us"
            both = diagnose(path, job.platform, measured, also=[(more, again)], assignments=assignments)
            second = tuple(s.name for s in both.suspects[:2])
        except StepsightError:
            pass
    return Fault(job, cause, severity, faulty_us / usual_us, first, second)


def nothing_wrong(count: int = FAULTS, seed: int = 8) -> float:
    """The share of runs without a fault with that verdict."""
    rng = np.random.default_rng(seed)
    right = 0
    for _ in range(count):
        job = JOBS[rng.integers(len(JOBS))]
        step_us = ask(job.file.load(), load_platform(job.platform)).step_us
        measured = f"{step_us * math.exp(NOISE * rng.standard_normal())}us"
        found = diagnose(job.file.path, job.platform, measured, assignments=job.file.assignments)
        right += found.verdict == USUAL
    return right / count


def scores() -> list[Score]:
    """The lines of the scoreboard."""
    return lines(faults(), nothing_wrong())


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
@click.option("--seed", default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(count: int, seed: int, as_json: bool) -> None:
    found, usual = faults(count, seed), nothing_wrong(count, seed + 1)
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
