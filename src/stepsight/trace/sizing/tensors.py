"""Tensor inputs of a traced operator: sizes, element types, bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from stepsight.dtypes import DTYPE_BYTES
from stepsight.trace.reading.events import Event, listed

_DTYPES = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16",
    "bfloat16": "bf16", "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short": "int16", "bool": "bool", "unsigned char": "uint8", "byte": "uint8", "signed char": "int8",
    "char": "int8", "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "c10::float8_e4m3fnuz": "fp8", "c10::float8_e8m0fnu": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor input."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES.get(self.dtype, 4)


def dtype_of(text: str) -> str:
    """The profiler's name of an element type in ours; fp32 where it names none."""
    text = text.lower().strip()
    if text.startswith("tensor("):
        text = text[7:].rstrip(")")
    return _DTYPES.get(text, "fp32")


def tensors_of(event: Event) -> list[Tensor]:
    """The tensor inputs of an operator, lists flattened, scalars left out; not to be changed."""
    return _flattened(event.sizes_text(), bytes(event.args.types))


@lru_cache(maxsize=16384)
def _flattened(sizes: bytes, kinds: bytes) -> list[Tensor]:
    """Layers and steps repeat the same few lists."""
    shapes, types = listed(sizes), listed(kinds)
    found: list[Tensor] = []
    for i, shape in enumerate(shapes):
        kind = types[i] if i < len(types) else ""
        found += _tensors(shape, kind)
    return found


def positional(event: Event) -> list[Tensor | None]:
    """One entry per input: its tensor, or None for a scalar, a list or nothing; not to be changed."""
    return _positional(event.sizes_text(), bytes(event.args.types))


@lru_cache(maxsize=16384)
def _positional(sizes: bytes, kinds: bytes) -> list[Tensor | None]:
    shapes, types = listed(sizes), listed(kinds)
    result: list[Tensor | None] = []
    for i, shape in enumerate(shapes):
        made = _tensors(shape, types[i] if i < len(types) else "")
        flat = isinstance(shape, list) and all(isinstance(x, int) for x in shape)
        result.append(made[0] if made and flat else None)
    return result


def _tensors(shape: Any, kind: Any) -> list[Tensor]:
    if not isinstance(shape, list) or not shape:
        return []
    if all(isinstance(x, int) for x in shape):
        if isinstance(kind, str) and kind.startswith(("Scalar", "GenericList", "Device")):
            return []
        return [Tensor(tuple(shape), dtype_of(kind if isinstance(kind, str) else ""))]
    inner = _inner_types(kind, len(shape))
    return [t for i, s in enumerate(shape) for t in _tensors(s, inner[i] if i < len(inner) else "")]


def _inner_types(kind: Any, count: int) -> list[Any]:
    """The types of a list's members: listed, or spelled out as "GenericList[Tensor(float),…]"."""
    if isinstance(kind, list):
        return kind
    if isinstance(kind, str) and kind.startswith("GenericList["):
        return re.findall(r"Tensor\([^)]*\)", kind) or ["GenericList"] * count
    return ["" if kind == "TensorList" else kind] * count
