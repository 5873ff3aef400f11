"""A job on a platform as learning, diagnosing and advising ask about it: priced once, with its rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from stepsight.capture.step.captured import CapturedStep, is_step_file, load_step
from stepsight.platform.conditions import NOTHING_LEARNED
from stepsight.platform.load import Platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.learn.response import JobResponse, LanguageResponse, Response
from stepsight.prediction.llm.answer import answered
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.predict import predict
from stepsight.prediction.runnable import check_runnable
from stepsight.prediction.throughput import Throughput, throughput
from stepsight.records import Assignments
from stepsight.workload.files import Workload, load_workload, resolve
from stepsight.workload.llm.workload import LanguageWorkload


@dataclass(frozen=True, slots=True)
class AskedStep:
    """``step_us`` and ``rates`` as predicted without anything learned, with the spread of ln(measured /
    predicted) that its interval states; ``memory_bytes`` of the fullest rank."""

    response: Response
    step_us: float
    spread: float
    rates: Throughput
    memory_bytes: float | None = None


def load_any(path: str | Path, assignments: Assignments = ()) -> Workload | CapturedStep:
    """A workload file, a model's name, a config.json, or a captured step."""
    file = Path(path)
    if is_step_file(file):
        return load_step(file)
    return load_workload(path, assignments)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job by its file or name, with assignments to its fields."""

    path: str | Path
    assignments: tuple[str, ...] = ()

    def load(self) -> Workload | CapturedStep:
        return load_any(self.path, self.assignments)

    def changed(self, *assignments: str) -> JobFile:
        """The same job with more assignments."""
        return JobFile(self.path, (*self.assignments, *assignments))


def ask(workload: Workload | CapturedStep, platform: Platform) -> AskedStep:
    """Price a job for questions; what was learned of the platform is left out."""
    on = unlearned(platform)
    if isinstance(workload, LanguageWorkload) and workload.eager is None:
        return _language(workload, on)
    return asked(predict(workload, on), on, workload.steps if isinstance(workload, CapturedStep) else 1)


def asked(prediction: Prediction, on: Platform, recorded: int = 1) -> AskedStep:
    """The same of a prediction that is there already."""
    memory = prediction.memory.total_bytes if prediction.memory else None
    response = JobResponse(prediction.timeline, on, recorded=recorded)
    return AskedStep(
        response,
        prediction.step_us,
        interval_spread(prediction.low_us, prediction.high_us),
        prediction.throughput,
        memory,
    )


def _language(workload: LanguageWorkload, on: Platform) -> AskedStep:
    training = resolve(workload, on.spec.ranks, on.spec.gpu)
    on = on.with_ranks(training.ranks)
    check_runnable(training, on)
    assert isinstance(training, LanguageWorkload)
    composer = Composer(training.config, on)
    found = answered(composer)
    rates = throughput(None, training.ranks, found.step_us, training.setup(), on.spec.gpu)
    spread = interval_spread(found.low_us, found.high_us)
    memory = float(training.memory().peak_bytes)
    return AskedStep(LanguageResponse(composer), found.step_us, spread, rates, memory)


def interval_spread(low_us: float, high_us: float) -> float:
    """The spread whose 90 % interval this is."""
    return math.log(high_us / low_us) / (2 * INTERVAL_SIGMAS)


def unlearned(platform: Platform) -> Platform:
    """The platform before its runs taught anything."""
    if platform.learned == NOTHING_LEARNED and platform.evidence is None:
        return platform
    return replace(platform, learned=NOTHING_LEARNED, evidence=None)
