"""Which memory is alive: storages are numbered when first seen and followed until torch drops them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from stepsight.program.allocator import CachingAllocator


@dataclass(slots=True)
class Peak:
    """The fullest moment: bytes by what holds them, and the call during which it came."""

    active_bytes: int = 0
    call: int = -1
    parts_bytes: dict[str, int] | None = None


class Liveness:
    """Storages of the fake GPU, and the allocator that would serve them."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.calls = 0
        self.peak = Peak()
        self.kind_of: Callable[[int], str] | None = None
        self._numbers = itertools.count(1)
        self._known: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._sizes: dict[int, int] = {}
        self.made_at: dict[int, int] = {}
        self.before_step: frozenset[int] = frozenset()

    def number(self, tensor: torch.Tensor) -> int:
        """The storage's number; -1 where a tensor has none or is not on the GPU."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return -1
        known = self._known.get(storage._cdata)
        return known[0] if known else -1

    def seen(self, tensor: torch.Tensor, stream: int) -> None:
        """A result of a call: new memory, or memory already known."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return
        key = storage._cdata
        if key in self._known:
            number = self._known[key][0]
            if storage.nbytes() != self._sizes.get(number):
                self._resized(number, storage.nbytes(), stream)
            return
        number = next(self._numbers)

        def dropped(_: object, key: int = key, number: int = number) -> None:
            self._known.pop(key, None)
            self._sizes.pop(number, None)
            self.made_at.pop(number, None)
            self.allocator.free(number)

        self._known[key] = (number, weakref.ref(storage, dropped))
        self._sizes[number] = storage.nbytes()
        self.made_at[number] = self.calls
        self._allocate(number, storage.nbytes(), stream)

    def resized(self, tensor: torch.Tensor, stream: int) -> None:
        """Its storage may have been resized (FSDP frees and refills storages that way)."""
        number = self.number(tensor)
        if number >= 0:
            size = tensor.untyped_storage().nbytes()
            if size != self._sizes.get(number):
                self._resized(number, size, stream)

    def _resized(self, number: int, size: int, stream: int) -> None:
        self.allocator.free(number)
        self._sizes[number] = size
        self._allocate(number, size, stream)

    def passing(self, size: int, stream: int) -> None:
        """Memory that a kernel takes and gives back within one call."""
        if size > 0:
            number = next(self._numbers)
            self._allocate(number, size, stream)
            self.allocator.free(number)

    def kept(self, size: int, stream: int) -> None:
        """Memory that a library takes once and keeps (cuBLAS workspaces)."""
        self._allocate(next(self._numbers), size, stream)

    def _allocate(self, number: int, size: int, stream: int) -> None:
        self.allocator.allocate(number, size, stream)
        if self.allocator.active_bytes > self.peak.active_bytes:
            self.peak.active_bytes, self.peak.call = self.allocator.active_bytes, self.calls

    def start_step(self) -> None:
        """Peaks from here on; the call count restarts."""
        self.allocator.reset_peaks()
        self.calls = 0
        self.before_step = frozenset(self._sizes)
        self.peak = Peak(self.allocator.active_bytes)

    def alive(self) -> dict[int, int]:
        """Storage number → bytes."""
        return dict(self._sizes)
