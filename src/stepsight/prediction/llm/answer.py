"""The answer for a language model: step, interval, and where it goes, from its composed passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.workload.llm.config import LanguageConfig

METHOD_SPREAD = 0.06
"""What is left when every kernel is right."""
INTERVAL_SIGMAS = 1.645
HOST_SPREAD = 0.25


@dataclass(frozen=True, slots=True)
class Quick:
    """Step time and 90 % interval in µs, with the composed parts."""

    step_us: float
    low_us: float
    high_us: float
    composed: Composed
    spreads: dict[str, float]


def quick(c: LanguageConfig, platform: Platform) -> Quick:
    """The step without a timeline: for searches and scores over thousands of configurations."""
    composer = Composer(c, platform)
    base = composer.step()
    spreads = {}
    for name in composer.names():
        slow = composer.step(name, "slow", HOST_SPREAD)
        spreads[name] = abs(slow.step_us / base.step_us - 1) if base.step_us > 0 else 0.0
    sigma = math.sqrt(METHOD_SPREAD**2 + sum(s * s for s in spreads.values()))
    factor = math.exp(INTERVAL_SIGMAS * sigma)
    return Quick(base.step_us, base.step_us / factor, base.step_us * factor, base, spreads)
