"""A job on a platform as learning, diagnosing and advising ask about it: priced once, with its rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stepsight.capture.step.captured import CapturedStep
from stepsight.capture.step.file import is_step_file, load_step
from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.learn.response import JobResponse, LanguageResponse, Response
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.predict import predict
from stepsight.prediction.runnable import check_runnable
from stepsight.prediction.throughput import Throughput, throughput
from stepsight.records import Assignments
from stepsight.workload.files import Workload, load_workload, settled
from stepsight.workload.llm.workload import LanguageWorkload


@dataclass(frozen=True, slots=True)
class AskedStep:
    """``step_us`` and ``rates`` as predicted without anything learned; ``memory_bytes`` of the fullest rank."""

    response: Response
    step_us: float
    rates: Throughput
    memory_bytes: float | None = None


def load_any(path: str | Path, assignments: Assignments = ()) -> Workload | CapturedStep:
    """A workload file, a model's name, a config.json, or a captured step."""
    file = Path(path)
    if file.suffix == ".json" and is_step_file(file):
        return load_step(file)
    return load_workload(path, assignments)


def ask(workload: Workload | CapturedStep, platform: Platform) -> AskedStep:
    """Price a job for questions; what was learned of the platform is left out."""
    on = unlearned(platform)
    if isinstance(workload, LanguageWorkload):
        return _language(workload, on)
    return asked(predict(workload, on), on, workload.steps if isinstance(workload, CapturedStep) else 1)


def asked(prediction: Prediction, on: Platform, recorded: int = 1) -> AskedStep:
    """The same of a prediction that is there already."""
    memory = prediction.memory.total_bytes if prediction.memory else None
    response = JobResponse(prediction.timeline, on, recorded=recorded)
    return AskedStep(response, prediction.step_us, prediction.throughput, memory)


def _language(workload: LanguageWorkload, on: Platform) -> AskedStep:
    training = settled(workload, on.spec.ranks)
    on = on.with_ranks(training.ranks)
    check_runnable(training, on)
    assert isinstance(training, LanguageWorkload)
    composer = Composer(training.config, on)
    step_us = composer.step().step_us
    rates = throughput(None, training.ranks, step_us, training.setup(), on.spec.gpu)
    return AskedStep(LanguageResponse(composer), step_us, rates, float(training.memory().peak_bytes))


def unlearned(platform: Platform) -> Platform:
    """The platform before its runs taught anything."""
    return replace(platform, learned=None) if getattr(platform, "learned", None) else platform
