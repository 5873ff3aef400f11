"""Trials that one worker gets at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepsight.tune.evaluate import evaluate
from stepsight.tune.trial import Row, Trial

ROUNDS = 6
"""Tasks a worker gets of a run: few, so that handing out costs little, but enough to even them out."""
MOST_TOGETHER = 32
"""Trials in one task at most: what is lost when its worker dies."""


def chunks(count: int, workers: int) -> list[range]:
    """Neighbouring trials together: they are alike, so that a worker prices their kernels once.

    The last tasks are short, so that all workers end at about the same time.
    """
    size = max(1, min(MOST_TOGETHER, -(-count // (ROUNDS * workers))))
    found, at = [], 0
    while at < count:
        take = max(1, min(size, (count - at) // (2 * workers) or 1))
        found.append(range(at, at + take))
        at += take
    return found


def evaluate_some(document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> list[Row]:
    """The answers to a chunk."""
    return [evaluate(document, trial, where) for trial in trials]
