"""An answer on a platform that its own runs taught about: its interval, and its memory."""

from __future__ import annotations

import math
from dataclasses import replace

from stepsight.capture.step.captured import CapturedStep
from stepsight.platform.load import Platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.learn.response import JobResponse, LanguageResponse, Response, elasticities
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.memory import MemoryLine
from stepsight.workload.files import Workload, resolve
from stepsight.workload.llm.workload import LanguageWorkload

CACHED = "cached_by_allocator"


def as_learned(made: Prediction, given: Workload | CapturedStep, on: Platform) -> Prediction:
    """The prediction with the interval that the platform's runs allow, and memory as they measured it."""
    if made.memory is not None and on.learned.memory != 1.0:
        made = replace(made, memory=_memory(made.memory, on.learned.memory))
    if on.evidence is None or made.step_us <= 0:
        return made
    _, slopes = elasticities(_response(made, given, on))
    own = math.log(made.high_us / made.low_us) / (2 * INTERVAL_SIGMAS)
    reach = math.exp(INTERVAL_SIGMAS * on.evidence.step_spread(slopes, own))
    return replace(made, low_us=made.step_us / reach, high_us=made.step_us * reach)


def _response(made: Prediction, given: Workload | CapturedStep, on: Platform) -> Response:
    if isinstance(given, LanguageWorkload) and given.eager is None:
        training = resolve(given, on.spec.ranks, on.spec.gpu)
        assert isinstance(training, LanguageWorkload)
        return LanguageResponse(Composer(training.config, on))
    return JobResponse(made.timeline, on)


def _memory(line: MemoryLine, factor: float) -> MemoryLine:
    """What the allocator holds more or less than predicted."""
    parts = dict(line.parts_bytes)
    parts[CACHED] = max(parts.get(CACHED, 0.0) + (factor - 1) * line.total_bytes, 0.0)
    return replace(line, parts_bytes=parts)
