"""What the recorder writes down (calls, collectives, waits), and how torch's tensors become plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.program.aten.call import AtenCall, TensorFact
from stepsight.program.job import Kernel


@dataclass(slots=True)
class CallRecord:
    """One library call on the fake GPU. ``mark`` ties it to the profiler's operators.

    ``graph`` numbers the compiled graph it belongs to, 0 outside; ``cuda_graph``: it replays one.
    ``kernels`` are those it launches where they are not the table's: what compilation made of them.
    """

    mark: int
    call: AtenCall
    stream: int
    graph: int = 0
    cuda_graph: bool = False
    kernels: tuple[Kernel, ...] | None = None


@dataclass(slots=True)
class CollectiveRecord:
    """A collective or a message. ``storages`` are those whose contents it makes."""

    mark: int
    kind: str
    bytes: float
    group: tuple[int, ...]
    stream: int
    storages: tuple[int, ...]
    dtype: str
    peer: int = -1
    sends: bool = True
    send_splits: tuple[float, ...] = ()
    receive_splits: tuple[float, ...] = ()
    in_backward: bool = False
    description: str = ""


@dataclass(slots=True)
class WaitRecord:
    """``Work.wait()`` on the collective with this mark; ``storage`` instead for a functional one."""

    stream: int
    collective: int = -1
    storage: int = -1


@dataclass(slots=True)
class SyncRecord:
    """A stream or event call: record, wait, event_sync, stream_sync, device_sync."""

    what: str
    stream: int
    event: int


Record = CallRecord | CollectiveRecord | WaitRecord | SyncRecord


@dataclass(slots=True)
class HostOperator:
    """A top-level operator as the profiler showed it."""

    name: str
    start_ns: int
    thread: int
    cuda_graph: bool = False


@dataclass(slots=True)
class StepRecords:
    """One step of one rank. ``operators`` maps a mark to its host operator; ``silent`` launched nothing."""

    records: list[Record] = field(default_factory=list)
    operators: dict[int, HostOperator] = field(default_factory=dict)
    silent: list[HostOperator] = field(default_factory=list)


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
        if t.layout == torch.sparse_coo:  # the values that it holds
            t = t._values()
            return TensorFact(tuple(int(s) for s in t.shape), DTYPES.get(t.dtype, "fp32"), t.stride(), device)
        number = self.storage_number(t) if device == "cuda" else -1
        offset = int(t.storage_offset()) if number >= 0 else 0
        shape = tuple(int(s) for s in t.shape)
        return TensorFact(shape, DTYPES.get(t.dtype, "fp32"), strides, device, number, offset)

    def call(self, func: Any, args: Any, kwargs: Any, node: str) -> AtenCall:
        """``func`` is the operator overload that was dispatched; its outputs come later."""
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
        if name in ("add", "add_") and len(args) > 1 and _is_sparse(args[1]) and not _is_sparse(args[0]):
            name, arguments["source"] = f"index_{name}", arguments["other"]
        inputs = tuple(_facts_in(arguments.values()))
        return AtenCall(
            name, inputs, (), arguments, func._overloadname, namespace, self._is_pointwise(func), node
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


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo


def _facts_in(values: Any) -> Iterator[TensorFact]:
    for value in values:
        if isinstance(value, TensorFact):
            yield value
        elif isinstance(value, list):
            yield from _facts_in(value)
