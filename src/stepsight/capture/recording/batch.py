"""How many samples a step trains: the first dimension of what the model is called with."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stepsight.capture.step.captured import Samples

IMAGE_CHANNELS = (1, 3)


class Batches:
    """Follows calls of modules with parameters that no other module makes: the model's, once per micro batch.
    Calls of the backward pass (activation checkpointing) do not count.

    Where several modules are called that way (generator and discriminator), the one that sees most counts.
    """

    def __init__(self, recording: Callable[[], bool]) -> None:
        self.recording = recording
        self._depth = 0
        self._seen: Counter[torch.nn.Module] = Counter()
        self._shapes: dict[torch.nn.Module, tuple[tuple[int, ...], bool]] = {}

    def install(self) -> None:
        call = torch.nn.Module.__call__

        @functools.wraps(call)
        def counted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._depth and self.recording() and torch._C._current_autograd_node() is None:
                self._note(module, (*args, *kwargs.values()))
            self._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        torch.nn.Module.__call__ = counted

    def start_step(self) -> None:
        self._seen.clear()
        self._shapes.clear()

    def _note(self, module: torch.nn.Module, inputs: Iterable[Any]) -> None:
        first = next((t for t in inputs if isinstance(t, torch.Tensor) and t.dim() > 1), None)
        if first is not None and next(module.parameters(), None) is not None:
            self._seen[module] += first.shape[0]
            self._shapes[module] = tuple(first.shape), first.is_floating_point()

    def samples(self) -> Samples:
        """Of this rank, in the recorded steps."""
        if not self._seen:
            return Samples()
        module, count = self._seen.most_common(1)[0]
        shape, floating = self._shapes[module]
        if len(shape) == 4 and shape[1] in IMAGE_CHANNELS and floating:
            return Samples(count, "images")
        if len(shape) == 2 and not floating:
            return Samples(count, "sequences", int(shape[1]))
        return Samples(count)
