"""A job as learning, diagnosing and advising ask about it: priced once, asked for any factors of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepsight.capturing.step import CapturedStep, is_step_file, load_step
from stepsight.estimate import FloatArray
from stepsight.platform.conditions import (
    NOTHING_LEARNED,
    Learned,
    collective_factor,
    network_weights,
    part_of,
)
from stepsight.platform.evidence import HOST, PARTS, WHOLE_STEP, Evidence
from stepsight.platform.load import Platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.language import LanguageStep
from stepsight.prediction.learn.regression import Factors, Response, elasticities, place
from stepsight.prediction.predict import predict
from stepsight.prediction.runnable import check_runnable
from stepsight.prediction.throughput import Throughput, throughput
from stepsight.program.job import Collective
from stepsight.records import Assignments
from stepsight.simulate.blocks import Question
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, step_times
from stepsight.workload.files import Workload, load_workload, resolve, with_recipe
from stepsight.workload.llm.config import chosen_recipe
from stepsight.workload.llm.workload import LanguageWorkload

MOST_AT_ONCE = 32
"""Configurations of one walk, which bounds its memory."""


@dataclass(frozen=True, slots=True)
class LanguageResponse:
    """A language model's step: every question is a configuration of its walk by blocks."""

    step: LanguageStep

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
        nodes = self.step.over_nodes()
        asked = [
            Question(
                {
                    name: collective_factor(one, nodes[name], name)
                    if name in nodes
                    else one.get(part_of(name), 1.0)
                    for name in self.step.walk.names()
                },
                one.get(HOST, 1.0),
            )
            for one in factors
        ]
        parts = [asked[at : at + MOST_AT_ONCE] for at in range(0, len(asked), MOST_AT_ONCE)]
        return np.concatenate([self.step.walk.steps_us(part) for part in parts])


@dataclass(frozen=True, slots=True)
class JobResponse:
    """A walked job: every question is a configuration of one walk. ``recorded``: steps that the job holds."""

    timeline: Timeline
    platform: Platform
    recorded: int = 1

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
        lanes = range(len(self.timeline.priced.lanes))
        powers = [self._powers(lane) for lane in lanes]
        found = []
        for at in range(0, len(factors), MOST_AT_ONCE):
            times = [self._scaled(lane, powers[lane], factors[at : at + MOST_AT_ONCE]) for lane in lanes]
            found.append(step_times(self.timeline.priced, self.platform, times, steps=STEADY_STEPS))
        return np.concatenate(found) / self.recorded

    def _scaled(self, lane: int, powers: FloatArray, factors: Sequence[Factors]) -> Priced:
        priced, stretched = self.timeline.priced.lanes[lane], self.timeline.stretched[lane]
        device: FloatArray = np.repeat(stretched.device_us, len(factors), axis=1)
        host: FloatArray = np.repeat(stretched.host_us, len(factors), axis=1)
        late = None if stretched.late_us is None else np.repeat(stretched.late_us, len(factors), axis=1)
        alone = np.broadcast_to(priced.times.device_us, stretched.device_us.shape)[:, 0]
        for c, one in enumerate(factors):
            logs = powers @ np.log([one.get(part, 1.0) for part in PARTS])
            device[:, c] += alone * np.expm1(logs)[:, None]
            host[:, c] *= one.get(HOST, 1.0)
        return Priced(host, device, late)

    def _powers(self, lane: int) -> FloatArray:
        """(launches, parts): how each launch's time depends on the parts."""
        priced, job = self.timeline.priced.lanes[lane], self.timeline.priced.job
        node = self.platform.spec.gpus_per_node
        powers = np.zeros((len(priced.category), len(PARTS)))
        items = [item for op in job.programs[int(priced.programs[0])].ops for item in launches_of(op)]
        for i, (name, item) in enumerate(zip(priced.category, items, strict=True)):
            if name != COMMUNICATION or not isinstance(item, Collective):
                powers[i, PARTS.index(part_of(name))] = 1.0
                continue
            sets = job.groups.get(item.group, ())
            ranks = item.spans or (sets[0].ranks if sets else ())
            for part, power in network_weights(len({r // node for r in ranks}), item.group).items():
                powers[i, PARTS.index(part)] = power
        return powers


@dataclass(frozen=True, slots=True)
class AskedStep:
    """``step_us`` and ``rates`` as predicted without anything learned, with the spread of ln(measured /
    predicted) that its interval states; ``machine``: the logarithms of its ranks, and of a GPU's peak and
    bandwidth; ``memory_bytes`` of the fullest rank; ``micro_batch`` of a language model, which may be the
    largest that fits."""

    response: Response
    step_us: float
    spread: float
    rates: Throughput
    machine: tuple[float, ...]
    memory_bytes: float | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job by its file or name, with assignments to its fields."""

    path: str | Path
    assignments: tuple[str, ...] = ()

    def load(self) -> Workload | CapturedStep:
        return load_any(self.path, self.assignments)

    def on(self, platform: Platform) -> JobFile:
        """The job in the training stack that the platform's runs look like, if it names none."""
        job = self.load()
        if not isinstance(job, LanguageWorkload) or with_recipe(job, platform.recipe) is job:
            return self
        return replace(self, assignments=(*self.assignments, f"training.recipe={platform.recipe}"))

    def changed(self, *assignments: str) -> JobFile:
        """The same job with more assignments. Where a setting would select another recipe by default, the
        job's own is stated: one change leaves the rest of the stack as it is."""
        more = JobFile(self.path, (*self.assignments, *assignments))
        own = self._recipe()
        stated = any(one.startswith("training.recipe=") for one in assignments)
        if own and not stated and more._recipe() != own:
            return JobFile(self.path, (*self.assignments, f"training.recipe={own}", *assignments))
        return more

    def _recipe(self) -> str:
        job = self.load()
        if not isinstance(job, LanguageWorkload):
            return ""
        return chosen_recipe(job.open_ranks, "").name if job.open_ranks else job.config.recipe


def load_any(path: str | Path, assignments: Assignments = ()) -> Workload | CapturedStep:
    """A workload file, a model's name, a config.json, or a captured step."""
    if is_step_file(Path(path)):
        return load_step(path)
    return load_workload(path, assignments)


def ask(workload: Workload | CapturedStep, platform: Platform) -> AskedStep:
    """Price a job for questions; what was learned of the platform is left out."""
    workload = with_recipe(workload, platform.recipe)
    on = replace(platform, learned=NOTHING_LEARNED, evidence=None)
    if isinstance(workload, LanguageWorkload) and workload.eager is None:
        training = resolve(workload, on.spec.ranks, on.spec.gpu, on.spec.gpus_per_node)
        on = on.with_ranks(training.ranks, training.sized_by)
        check_runnable(training, on)
        assert isinstance(training, LanguageWorkload)
        step = LanguageStep(training.config, on)
        found = step.answer()
        rates = throughput(None, training.ranks, found.step_us, training.setup(), on.spec.gpu)
        spread = interval_spread(found.low_us, found.high_us)
        memory = float(training.memory().peak_bytes)
        micro = training.config.micro_batch
        machine = _machine(training.ranks, on)
        return AskedStep(LanguageResponse(step), found.step_us, spread, rates, machine, memory, micro)
    return asked(predict(workload, on), on, workload)


def asked(prediction: Prediction, on: Platform, workload: Workload | CapturedStep) -> AskedStep:
    """The same of a prediction that is there already."""
    recorded = workload.steps if isinstance(workload, CapturedStep) else 1
    spread = interval_spread(prediction.low_us, prediction.high_us)
    memory = prediction.memory.total_bytes if prediction.memory else None
    response = JobResponse(prediction.timeline, on, recorded)
    machine = _machine(len(prediction.ranks), on)
    return AskedStep(response, prediction.step_time_us, spread, prediction.throughput, machine, memory)


def _machine(ranks: int, on: Platform) -> tuple[float, ...]:
    gpu = on.spec.gpu
    return math.log(ranks), math.log(gpu.peak_flops("fp16")), math.log(gpu.memory_gbps)


def interval_spread(low_us: float, high_us: float) -> float:
    """The spread whose 90 % interval this is."""
    return math.log(high_us / low_us) / (2 * INTERVAL_SIGMAS)


def for_job(given: Workload | CapturedStep, on: Platform) -> tuple[Platform, float]:
    """A learned platform as one job finds it, and the spread of the job's step there. What runs of jobs that
    resemble it took beyond the factors of the parts scales all of these, and so do other recipes."""
    evidence = on.evidence
    assert evidence is not None
    pairs = ((on.learned, evidence), *evidence.others)
    answers = [_answer(given, replace(on, evidence=its), factors, its) for factors, its in pairs]
    mean, spread = averaged(
        [(its.probability, m, s) for (_, its), (_, m, s) in zip(pairs, answers, strict=True)]
    )
    beyond = math.exp(mean - answers[0][0])
    scaled = {part: beyond * float(getattr(on.learned, part)) for part in WHOLE_STEP}
    return replace(
        on, learned=replace(on.learned, **scaled), evidence=replace(evidence, beyond=beyond)
    ), spread


def _answer(
    given: Workload | CapturedStep, on: Platform, learned: Learned, evidence: Evidence
) -> tuple[float, float, float]:
    """ln(step) with the factors, the same with what resembling jobs add, and its spread."""
    step = ask(given, on)
    factors = {part: float(getattr(learned, part)) for part in PARTS}
    with_factors, usual_us = step.response.steps_us([factors, {}])
    at = place(step.response, step.step_us, step.machine)
    shift, spread = evidence.of_job(elasticities(step.response, factors), step.spread, at)
    log = math.log(step.step_us * with_factors / usual_us)
    return log, log + shift, spread


def averaged(answers: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Mean and spread of a mixture of normal distributions, from probability, mean and spread of each."""
    weights, means, spreads = (np.array(column) for column in zip(*answers, strict=True))
    weights /= weights.sum()
    mean = float(weights @ means)
    return mean, math.sqrt(max(float(weights @ (spreads**2 + means**2)) - mean**2, 0.0))
