"""A call of torch's tensor library with its tensors' sizes, as the lowering table reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel

Shape = tuple[int, ...]


class Sized(Protocol):
    """What a kernel's sizes are read from: any tensor, real, fake or symbolic."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> str: ...
    @property
    def strides(self) -> Shape: ...


@dataclass(frozen=True, slots=True)
class TensorFact:
    """A tensor as a call saw it. ``storage`` numbers its memory, -1 where unknown;
    ``offset`` is where it starts there, in elements."""

    shape: Shape
    dtype: str
    strides: Shape
    device: str = "cuda"
    storage: int = -1
    offset: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)


def elements(t: Sized) -> int:
    return prod(t.shape)


def size_bytes(t: Sized) -> int:
    """All elements, repeated ones included."""
    return prod(t.shape) * dtype_bytes(t.dtype)


def read_bytes(t: Sized) -> int:
    """What reading a tensor moves: an expanded dimension (stride 0) is read once."""
    distinct = prod(size for size, stride in zip(t.shape, t.strides, strict=True) if stride != 0 or size == 0)
    return distinct * dtype_bytes(t.dtype)


def is_contiguous(t: Sized) -> bool:
    expected = 1
    for size, stride in zip(reversed(t.shape), reversed(t.strides), strict=True):
        if size == 0:
            return True
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def column_major(t: Sized) -> bool:
    """Whether a matrix (the last two dimensions) lies transposed."""
    return len(t.shape) >= 2 and t.strides[-2] == 1 and t.shape[-2] > 1 and t.strides[-1] != 1


MOST_FREQUENT = "most_frequent"
"""How often the index that occurs most often does, where indices are known."""


@dataclass(frozen=True, slots=True)
class AtenCall:
    """``name`` without its namespace and overload; ``arguments`` by the schema's names.

    A lookup's gradient may also have `MOST_FREQUENT`. ``pointwise`` is torch's own tag. ``node`` is the
    autograd node that called, in a backward pass.
    """

    name: str
    inputs: tuple[TensorFact, ...]
    outputs: tuple[TensorFact, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overload: str = "default"
    namespace: str = "aten"
    pointwise: bool = False
    node: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        value = self.arguments.get(name)
        return default if value is None else value

    @property
    def on_gpu(self) -> tuple[TensorFact, ...]:
        return tuple(t for t in self.inputs if t.device == "cuda")

    @property
    def made_on_gpu(self) -> tuple[TensorFact, ...]:
        return tuple(t for t in self.outputs if t.device == "cuda")


@dataclass(frozen=True, slots=True)
class Precision:
    """Which number formats fp32 products use, and the library that runs convolutions. ``sums_in_turn``: one
    thread adds up all gradients of an embedding's row."""

    matmul_tf32: bool = False
    conv_tf32: bool = False
    cudnn: int = 9
    sums_in_turn: bool = False

    def matmul(self, dtype: str) -> str:
        return "tf32" if dtype == "fp32" and self.matmul_tf32 else dtype

    def conv(self, dtype: str) -> str:
        return "tf32" if dtype == "fp32" and self.conv_tf32 else dtype


@dataclass(frozen=True, slots=True)
class Lowered:
    """The kernels of a call; whether the host waits for them; whether the kernel was guessed."""

    kernels: tuple[Kernel, ...] = ()
    blocks_host: bool = False
    guessed: bool = False


def lists_of_tensors(call: AtenCall) -> Iterator[Sequence[TensorFact]]:
    """Arguments that are lists of tensors on the GPU, in the schema's order."""
    for value in call.arguments.values():
        if isinstance(value, list | tuple) and value and all(isinstance(t, TensorFact) for t in value):
            on_gpu = [t for t in value if t.device == "cuda"]
            if on_gpu:
                yield on_gpu
