"""Trials that one worker gets at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.trial import Row, Trial

ROUNDS = 6
"""Tasks a worker gets of a run: few, so that handing out costs little, but enough to even them out."""
MOST_TOGETHER = 32
"""Trials in one task at most: what is lost when its worker dies."""


class Stretches:
    """Trials not handed out yet, a stretch of neighbours for each worker.

    Neighbours are identical, so a worker that stays in its stretch prices what they share once, and no other
    worker does. One that is done helps where most is left, from that stretch's end. The last tasks are
    short, so that all workers end at about the same time.
    """

    def __init__(self, count: int, workers: int) -> None:
        self._left = [range(count * i // workers, count * (i + 1) // workers) for i in range(workers)]
        self._size = max(1, min(MOST_TOGETHER, -(-count // (ROUNDS * workers))))

    def __bool__(self) -> bool:
        return any(self._left)

    def take(self, worker: int) -> range:
        """The next trials of a worker; empty where none are left."""
        total = sum(map(len, self._left))
        take = max(1, min(self._size, total // (2 * len(self._left))))
        mine = self._left[worker]
        if mine:
            self._left[worker] = mine[take:]
            return mine[:take]
        longest = max(range(len(self._left)), key=lambda i: len(self._left[i]))
        other = self._left[longest]
        self._left[longest] = other[: max(0, len(other) - take)]
        return other[max(0, len(other) - take) :]


def evaluate_some(document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> list[Row]:
    """The answers to a chunk."""
    return [evaluate(document, trial, where) for trial in trials]
