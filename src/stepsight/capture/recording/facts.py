"""From torch's tensors and schemas to the plain facts that the lowering table reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.program.aten.call import AtenCall, TensorFact

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8",
    torch.uint8: "uint8", torch.bool: "bool", torch.complex64: "fp64", torch.complex128: "fp64",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8", torch.uint16: "int16", torch.uint32: "int32",
    torch.uint64: "int64",
}  # fmt: skip

_PLAIN = (int, float, bool, str, type(None))


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested arguments, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def mapped(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Nested arguments with every tensor replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, function) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, function) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, function) for k, v in value.items()}
    return value


class Facts:
    """Writes tensors down; ``storage_number`` tells memories apart for as long as the run lasts."""

    def __init__(self, storage_number: Callable[[torch.Tensor], int]) -> None:
        self.storage_number = storage_number
        self._pointwise: dict[Any, bool] = {}

    def tensor(self, t: torch.Tensor) -> TensorFact:
        device = t.device.type if isinstance(t, FakeTensor) else "cpu"
        try:
            strides = tuple(int(s) for s in t.stride())
        except RuntimeError:
            strides = (1,) * t.dim()
        number = self.storage_number(t) if device == "cuda" else -1
        offset = int(t.storage_offset()) if number >= 0 else 0
        shape = tuple(int(s) for s in t.shape)
        return TensorFact(shape, DTYPES.get(t.dtype, "fp32"), strides, device, number, offset)

    def call(self, func: Any, args: Any, kwargs: Any, outputs: Any, node: str) -> AtenCall:
        """``func`` is the operator overload that was dispatched."""
        schema = func._schema
        arguments: dict[str, Any] = {}
        for i, argument in enumerate(schema.arguments):
            if i < len(args):
                arguments[argument.name] = self._plain(args[i])
            elif argument.name in kwargs:
                arguments[argument.name] = self._plain(kwargs[argument.name])
            elif argument.default_value is not None:
                arguments[argument.name] = argument.default_value
        namespace, name = schema.name.split("::")
        inputs = tuple(_facts_in(arguments.values()))
        made = tuple(self.tensor(t) for t in tensors_in(outputs))
        return AtenCall(
            name, inputs, made, arguments, func._overloadname, namespace, self._is_pointwise(func), node
        )

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, list | tuple):
            return [self._plain(v) for v in value]
        return value if isinstance(value, _PLAIN) else str(value)

    def _is_pointwise(self, func: Any) -> bool:
        known = self._pointwise.get(func)
        if known is None:
            known = self._pointwise[func] = torch.Tag.pointwise in func.tags
        return known


def _facts_in(values: Any) -> Iterator[TensorFact]:
    for value in values:
        if isinstance(value, TensorFact):
            yield value
        elif isinstance(value, list):
            yield from _facts_in(value)
