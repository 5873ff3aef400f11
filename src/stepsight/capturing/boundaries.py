"""One step: where it begins and ends, its samples, its host operators as torch's CPU profiler names them.

A step lies between two calls of ``Optimizer.step``. Gradient accumulation needs nothing: its backward passes
lie between two optimizer steps.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stepsight.capturing.calls import HostOperator
from stepsight.capturing.recorder import MARK
from stepsight.capturing.step import Samples

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
        self.counts: Counter[Any] = Counter()
        """Steps of each optimizer."""
        self.recorded = 0
        self.done = False
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that exist; one that has not stepped yet is waited for."""
        self._boundary: Any = None

    @property
    def seen(self) -> int:
        """Steps of the optimizer that has made most."""
        return max(self.counts.values(), default=0)

    def stepped(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """An optimizer finished a step."""
        if self.done:
            return
        new = optimizer not in self.counts
        self.counts[optimizer] += 1
        if self._boundary is not None and new:  # another optimizer: start over with both known
            self._boundary, self.recorded = None, 0
        if self._boundary is None:
            awaited = self.seen < PATIENCE and any(o not in self.counts for o in self.made)
            if not awaited and self.counts[optimizer] == min(self.counts.values()) >= self.warmup:
                self._boundary = optimizer
                self.begin()
            return
        if optimizer is not self._boundary:
            return
        self.recorded += 1
        if self.recorded < self.wanted:
            return
        self.end()
        self.done = True
        raise StepsRecordedError


IMAGE_CHANNELS = (1, 3)


class Batches:
    """Follows calls of modules with parameters that no other module makes: the model's, once per micro batch.
    Calls of the backward pass (activation checkpointing) do not count.

    Where several modules are called that way (generator and discriminator), the one that sees most counts. An
    activation that a module sees twice in a row (a loss and a metric of one output) counts once.
    """

    def __init__(self, recording: Callable[[], bool]) -> None:
        self.recording = recording
        self._depth = 0
        self._seen: Counter[torch.nn.Module] = Counter()
        self._shapes: dict[torch.nn.Module, tuple[tuple[int, ...], bool]] = {}
        self._last: dict[torch.nn.Module, weakref.ref[torch.Tensor]] = {}

    def install(self) -> None:
        call = torch.nn.Module.__call__

        @functools.wraps(call)
        def counted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._depth and torch._C._current_autograd_node() is None:
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
        if first is None or next(module.parameters(), None) is None:
            return
        last = self._last.get(module)
        again = last is not None and last() is first
        if first.grad_fn is not None:
            self._last[module] = weakref.ref(first)
        if self.recording() and not again:
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


_ANNOTATIONS = (
    "Python", "DistributedDataParallel", "FSDP", "ProfilerStep", "##", "nccl:", "PyTorch", "FullyShard",
)  # fmt: skip
"""Ranges that frameworks put around operators; a profile's operators are the ones inside."""
OPTIMIZER = "Optimizer."


@dataclass(slots=True)
class _Open:
    start: int
    end: int
    name: str
    transparent: bool


_PROFILE = torch.autograd.profiler.profile


class _NoProfile:
    """Stands in for the script's own profilers: one profile runs at a time, and it is the capture's."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _NoProfile:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def key_averages(self, *_: Any, **__: Any) -> Any:
        return torch.autograd.profiler_util.EventList()

    events = function_events = total_average = key_averages

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


def install_profilers() -> None:
    """From now on scripts profile nothing."""
    torch.profiler.profile = torch.profiler._KinetoProfile = _NoProfile
    torch.autograd.profiler.profile = torch.autograd.profiler.emit_nvtx = _NoProfile


class HostProfile:
    """Runs the CPU profiler between `start` and `stop`."""

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        self._profiler = _PROFILE(use_cpu=True, use_kineto=True)
        self._profiler.__enter__()

    def stop(self) -> tuple[dict[int, HostOperator], list[HostOperator]]:
        """Mark → its top-level operator; and the operators that launched nothing."""
        self._profiler.__exit__(None, None, None)
        events = self._profiler.kineto_results.events()
        by_thread: dict[int, list[tuple[int, int, str, bool]]] = {}
        for event in events:
            name = event.name()
            annotation = name.startswith(_ANNOTATIONS) or event.is_user_annotation()
            transparent = annotation and not name.startswith((OPTIMIZER, MARK))
            by_thread.setdefault(event.start_thread_id(), []).append(
                (event.start_ns(), -event.duration_ns(), name, transparent)
            )
        marked: dict[int, HostOperator] = {}
        tops: list[HostOperator] = []
        for thread, rows in by_thread.items():
            _nest(thread, sorted(rows), marked, tops)
        launched = {(op.thread, op.start_ns) for op in marked.values()}
        return marked, [op for op in tops if (op.thread, op.start_ns) not in launched]


def _nest(
    thread: int, rows: list[tuple[int, int, str, bool]], marked: dict[int, HostOperator],
    tops: list[HostOperator],
) -> None:  # fmt: skip
    """Walk the ranges of one thread; the outermost operator around a mark owns it."""
    stack: list[_Open] = []
    for start, negative, name, transparent in rows:
        while stack and stack[-1].end <= start:
            stack.pop()
        end = start - negative
        if name.startswith(MARK):
            owner = next((x for x in stack if x.name.startswith(OPTIMIZER)), None)
            owner = owner or next((x for x in stack if not x.transparent), None)
            if owner is not None:
                marked[int(name[len(MARK) :])] = HostOperator(owner.name, owner.start, thread)
            stack.append(_Open(start, end, name, True))
            continue
        inside_mark = any(x.name.startswith(MARK) for x in stack)
        if not inside_mark and not transparent and all(x.transparent for x in stack):
            tops.append(HostOperator(name, start, thread))
        stack.append(_Open(start, end, name, transparent or inside_mark))
