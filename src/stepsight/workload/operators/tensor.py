"""Symbolic tensors: sizes, strides, dtype, and the storage they share, with its lifetime. No data.

Strides matter because eager PyTorch copies a tensor only where a reshape cannot be a
view; whether it can is decided by the strides, here by the same rule.

torch frees a tensor when nothing refers to it any more. On a tape that is after the last call that takes it
as input; what a function saves for its gradient lives until that gradient has been computed, and a
parameter's gradient until the step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from stepsight.dtypes import dtype_bytes
from stepsight.program.allocator import CachingAllocator

if TYPE_CHECKING:
    from stepsight.workload.operators.tape import Node


Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one or more tensors. ``persistent``: parameters, buffers and inputs."""

    bytes: int
    persistent: bool = False

    def __post_init__(self) -> None:
        lifetimes = _current.get()
        if lifetimes is not None:
            lifetimes.born(self)


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor as autograd sees it: ``node`` produced it (output ``output``), or None."""

    shape: Shape
    dtype: str
    strides: Shape
    storage: Storage
    node: Node | None = None
    output: int = 0
    name: str = ""
    parameter: bool = field(default=False)

    @classmethod
    def new(
        cls, shape: Sequence[int], dtype: str = "fp32", *, persistent: bool = False, name: str = ""
    ) -> Tensor:
        """A fresh contiguous tensor."""
        sizes = tuple(shape)
        storage = Storage(prod(sizes) * dtype_bytes(dtype), persistent)
        return cls(sizes, dtype, contiguous_strides(sizes), storage, name=name)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * dtype_bytes(self.dtype)

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    def alias(self, shape: Shape, strides: Shape) -> Tensor:
        """A view of the same storage, not yet known to autograd."""
        return Tensor(shape, self.dtype, strides, self.storage)

    def is_contiguous(self) -> bool:
        return _same_strides(self.shape, self.strides, contiguous_strides(self.shape))

    def is_dense(self) -> bool:
        """Non-overlapping and dense: some permutation of the dimensions is contiguous."""
        dims = sorted((st, sz) for sz, st in zip(self.shape, self.strides, strict=True) if sz != 1)
        expected = 1
        for stride, size in dims:
            if stride != expected:
                return False
            expected *= size
        return True

    def empty_like(self, dtype: str | None = None) -> Tensor:
        """A result laid out as an element-wise kernel lays it out: like this one where it is dense."""
        out = Tensor.new(self.shape, dtype or self.dtype)
        if self.is_dense():
            out.strides = self.strides
        return out


def contiguous_strides(shape: Shape) -> Shape:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def same_layout(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one shape have the same layout in memory."""
    return _same_strides(left.shape, left.strides, right.strides)


def _same_strides(shape: Shape, left: Shape, right: Shape) -> bool:
    if prod(shape) == 0:
        return True
    return all(a == b for size, a, b in zip(shape, left, right, strict=True) if size != 1)


def view_strides(tensor: Tensor, shape: Shape) -> Shape | None:
    """The strides with which ``tensor`` can be seen as ``shape``, or None if it must be copied.

    Neighbouring dimensions that lie in one run of memory form a chunk; the new sizes must
    fall inside such chunks.
    """
    if tensor.elements == 0:
        return contiguous_strides(shape)
    old = [(size, stride) for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    out = [0] * len(shape)
    new_dim = len(shape) - 1
    chunk_stride = old[-1][1] if old else 1
    chunk, seen = 1, 1
    for i in range(len(old) - 1, -1, -1):
        chunk *= old[i][0]
        ends = i == 0 or (old[i - 1][0] != 1 and old[i - 1][1] != chunk * chunk_stride)
        if not ends:
            continue
        while new_dim >= 0 and (seen < chunk or shape[new_dim] == 1):
            out[new_dim] = seen * chunk_stride
            seen *= shape[new_dim]
            new_dim -= 1
        if seen != chunk:
            return None
        if i > 0:
            chunk_stride, chunk, seen = old[i - 1][1], 1, 1
    if not old:
        return contiguous_strides(shape)
    return tuple(out) if new_dim == -1 else None


def broadcast(left: Shape, right: Shape) -> Shape:
    """The common shape of two operands."""
    rank = max(len(left), len(right))
    a = (1,) * (rank - len(left)) + left
    b = (1,) * (rank - len(right)) + right
    return tuple(max(x, y) if min(x, y) == 1 else x for x, y in zip(a, b, strict=True))


_current: ContextVar[Lifetimes | None] = ContextVar("lifetimes", default=None)


@dataclass(slots=True)
class Lifetimes:
    """Counts library calls, and notes around which of them a storage is made and used for the last time."""

    clock: int = 0
    _fresh: bool = True
    _born: dict[Storage, int] = field(default_factory=dict)
    _last: dict[Storage, int] = field(default_factory=dict)
    _kept: set[Storage] = field(default_factory=set)

    @classmethod
    def begin(cls) -> Lifetimes:
        """A new tape's: storages made from now on belong to it."""
        made = cls()
        _current.set(made)
        return made

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
