"""Which memory of a recorded step is alive when: from the call that makes it to the last one that reads it.

torch frees a tensor when nothing refers to it any more. On a tape that is after the last call that takes it
as input; what a function saves for its gradient lives until that gradient has been computed, and a
parameter's gradient until the step ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepsight.program.allocator import CachingAllocator

if TYPE_CHECKING:
    from stepsight.workload.operators.tensor import Storage, Tensor

_following: ContextVar[bool] = ContextVar("following", default=False)
_current: ContextVar[Lifetimes | None] = ContextVar("lifetimes", default=None)


@contextmanager
def followed() -> Iterator[None]:
    """Tapes begun in this block keep the lifetimes of their storages."""
    before = _following.set(True)
    try:
        yield
    finally:
        _following.reset(before)
        _current.set(None)


def begin() -> Lifetimes | None:
    """A new tape's record, if anybody asked for it; storages made from now on belong to it."""
    if not _following.get():
        return None
    made = Lifetimes()
    _current.set(made)
    return made


def born(storage: Storage) -> None:
    """A storage came to be."""
    lifetimes = _current.get()
    if lifetimes is not None:
        lifetimes.born(storage)


@dataclass(slots=True)
class Lifetimes:
    """Counts library calls; ``step`` gives what is made and dropped around each of them."""

    clock: int = 0
    _fresh: bool = True
    _born: dict[Storage, int] = field(default_factory=dict)
    _last: dict[Storage, int] = field(default_factory=dict)
    _kept: set[Storage] = field(default_factory=set)

    def opened(self) -> None:
        """A host operator begins: what is made before its first call is that call's."""
        self._fresh = True

    def born(self, storage: Storage) -> None:
        self._born[storage] = self.clock + self._fresh

    def called(self, inputs: Sequence[Tensor]) -> None:
        self.clock += 1
        self._fresh = False
        self.used(inputs)

    def used(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._last[tensor.storage] = self.clock

    def made(self, tensor: Tensor) -> None:
        """The result of the call just made."""
        if tensor.storage in self._born and tensor.storage not in self._last:
            self._born[tensor.storage] = self.clock

    def keep(self, tensor: Tensor) -> None:
        """It lives until the end of the step: a parameter's gradient."""
        self._kept.add(tensor.storage)

    def events(self) -> list[tuple[int, int, int, int]]:
        """(time, 0 made or 1 dropped, number, bytes) in order; what is kept is never dropped."""
        found = []
        for number, (storage, made) in enumerate(self._born.items()):
            kept, last = storage in self._kept, self._last.get(storage)
            if storage.persistent or (last is None and not kept):
                continue
            found.append((made, 0, number, storage.bytes))
            if not kept:
                found.append((max(last or made, made), 1, number, storage.bytes))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the caching allocator reaches during a step, in bytes."""

    active_bytes: int
    reserved_bytes: int


def peaks(lifetimes: Lifetimes, held: Sequence[int], state: Sequence[int], temporary: Sequence[int]) -> Peaks:
    """The second of two steps: ``held`` is there from the start, ``state`` comes with the first update,
    ``temporary`` is taken and dropped by each update, all as sizes of single tensors."""
    allocator = CachingAllocator()
    numbers = iter(range(1, 1 << 62))
    for size in held:
        allocator.allocate(-next(numbers), size)
    events = lifetimes.events()
    offset = 0
    kept: list[int] = []
    for step in range(2):
        allocator.reset_peaks()
        for number in kept:  # zero_grad
            allocator.free(number)
        kept = []
        for _, dropped, number, size in events:
            if dropped:
                allocator.free(offset + number)
            else:
                allocator.allocate(offset + number, size)
        kept = [offset + n for _, _, n, _ in events if allocator.size_of(offset + n)]
        if step == 0:
            for size in state:
                allocator.allocate(-next(numbers), size)
        passing = [-next(numbers) for _ in temporary]
        for number, size in zip(passing, temporary, strict=True):
            allocator.allocate(number, size)
        for number in passing:
            allocator.free(number)
        offset += len(lifetimes._born) + 1
    return Peaks(allocator.peak_active_bytes, allocator.peak_reserved_bytes)
