"""Where a training step begins and ends: at an optimizer's steps, after warm-up.

With several optimizers the one that steps least often is the boundary (a GAN's generator and its
discriminator that steps five times as often). Gradient accumulation needs nothing: its backward passes lie
between two optimizer steps.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

PATIENCE = 8
"""After this many steps of one optimizer, others that were made and never stepped are not waited for."""


class StepsRecordedError(BaseException):
    """Ends the script once enough has been recorded; a BaseException, so that scripts do not catch it."""


class StepBoundaries:
    """Counts optimizer steps and calls ``begin`` and ``end`` around those to record."""

    def __init__(
        self, begin: Callable[[], None], end: Callable[[], None], *, warmup: int = 2, steps: int = 1
    ) -> None:
        self.begin, self.end = begin, end
        self.warmup, self.wanted = warmup, steps
        self.counts: Counter[int] = Counter()
        self.recorded = 0
        self.done = False
        self.optimizers: dict[int, Any] = {}
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that exist; one that has not stepped yet is waited for."""
        self._boundary: int | None = None
        self._since = 0

    @property
    def seen(self) -> int:
        """Steps of the optimizer that has made most."""
        return max(self.counts.values(), default=0)

    def stepped(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """An optimizer finished a step."""
        if self.done:
            return
        key = id(optimizer)
        new = key not in self.counts
        self.counts[key] += 1
        self.optimizers[key] = optimizer
        if self._boundary is not None and new:  # another optimizer: start over with both known
            self._boundary = None
            self.recorded = self._since = 0
        if self._boundary is None:
            awaited = [o for o in self.made if id(o) not in self.counts] if self.seen < PATIENCE else []
            least = min(self.counts.values())
            if not awaited and self.counts[key] == least and self.counts[key] >= self.warmup:
                self._boundary = key
                self.begin()
            return
        if key != self._boundary:
            return
        self.recorded += 1
        if self.recorded < self.wanted:
            return
        self.end()
        self.done = True
        raise StepsRecordedError
