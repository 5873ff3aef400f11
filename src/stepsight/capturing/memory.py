"""Memory of a step: when storages live, what libraries take besides, and what holds the peak."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from stepsight.capturing.step import RankMemoryUse
from stepsight.program.allocator import CachingAllocator


class Liveness:
    """Storages of the fake GPU, and the allocator that would serve them."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.calls = 0
        self.peak_bytes, self.peak_call = 0, -1
        self._numbers = itertools.count(1)
        self._known: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self.sizes: dict[int, int] = {}
        """Storage number → bytes, of those that live."""
        self.before_step: frozenset[int] = frozenset()

    def number(self, tensor: torch.Tensor) -> int:
        """The storage's number; -1 where a tensor has none or is not on the GPU."""
        storage = _storage(tensor)
        known = self._known.get(storage._cdata) if storage is not None else None
        return known[0] if known else -1

    def seen(self, tensor: torch.Tensor, stream: int) -> None:
        """A result of a call: new memory, or memory already known."""
        storage = _storage(tensor)
        if storage is None:
            return
        key = storage._cdata
        if key in self._known:
            self.resized(tensor, stream)
            return
        number = next(self._numbers)

        def dropped(_: object, key: int = key, number: int = number) -> None:
            self._known.pop(key, None)
            self.sizes.pop(number, None)
            self.allocator.free(number)

        self._known[key] = (number, weakref.ref(storage, dropped))
        self.sizes[number] = storage.nbytes()
        self._allocate(number, storage.nbytes(), stream)

    def resized(self, tensor: torch.Tensor, stream: int) -> None:
        """Its storage may have been resized (FSDP frees and refills storages that way)."""
        number = self.number(tensor)
        size = tensor.untyped_storage().nbytes() if number >= 0 else None
        if size is not None and size != self.sizes.get(number):
            self.allocator.free(number)
            self.sizes[number] = size
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
        if self.allocator.active_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_call = self.allocator.active_bytes, self.calls

    def start_step(self) -> None:
        """Peaks from here on; the call count restarts."""
        self.allocator.reset_peaks()
        self.calls = 0
        self.before_step = frozenset(self.sizes)
        self.peak_bytes, self.peak_call = self.allocator.active_bytes, -1


def _storage(tensor: torch.Tensor) -> Any:
    """A tensor's memory; None where it has none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


MIB = 1 << 20
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "_scaled_mm", "_addmm_activation"))


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """torch's default CUBLAS_WORKSPACE_CONFIG: 32 MiB on Hopper and newer, else :4096:2:16:8."""
    return 32 * MIB if capability >= (9, 0) else 2 * 4096 * 1024 + 8 * 16 * 1024


class Workspaces:
    """What a GPU of this capability takes."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self._handles: set[tuple[int, bool, int]] = set()

    def kept(self, name: str, stream: int) -> Iterator[int]:
        """Sizes taken once and kept."""
        if name not in _PRODUCTS:
            return
        backward = torch._C._current_autograd_node() is not None  # on a GPU it has a thread of its own
        handle = (threading.get_ident(), backward, stream)
        if handle not in self._handles:
            self._handles.add(handle)
            yield cublas_workspace_bytes(self.capability)

    def passing(self, name: str, args: Any, out: Any) -> int:
        """Bytes taken during the call and given back."""
        if name == "_scaled_dot_product_flash_attention_backward":
            q = args[1]
            batch, heads, length, size = q.shape
            rounded = -(-length // 128) * 128
            width = -(-size // 32) * 32
            return int(batch * heads * rounded * (width + 1) * 4)  # fp32 accumulator of dq, and row sums
        if name == "_scaled_dot_product_efficient_attention_backward":
            q = args[1]
            return int(q.shape[0] * q.shape[1] * q.shape[2] * 4)
        if name == "native_layer_norm_backward" and isinstance(args[1], torch.Tensor):
            cols = args[1].shape[-1]
            return int(2 * 4 * cols * 64)  # partial sums of weight and bias gradients
        if name == "embedding_dense_backward":
            return int(args[1].numel() * 8 * 4)  # sorted indices, their origins, and the sort's own buffer
        if name in ("sort", "argsort", "_unique2"):
            return int(args[0].numel() * (args[0].element_size() + 8) * 2)
        return 0


def memory_use(
    rank: int, liveness: Liveness, optimizers: Iterable[Any], operators: Sequence[str]
) -> RankMemoryUse:
    """At the end of a step, when parameters, gradients and optimizer states are all there."""
    alive = liveness.sizes
    parts = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0)
    seen: set[int] = set()
    for kind, tensor in _held(optimizers):
        number = liveness.number(tensor)
        if number in alive and number not in seen:
            seen.add(number)
            parts[kind] += alive[number]
    lasting = sum(size for number, size in alive.items() if number in liveness.before_step - seen)
    if lasting:
        parts["other_persistent"] = lasting
    peak = liveness.allocator.peak_active_bytes
    parts["activations_and_temporaries"] = max(peak - sum(parts.values()), 0)
    call = liveness.peak_call  # counted from one
    at = operators[call - 1] if 0 < call <= len(operators) else ""
    return RankMemoryUse(rank, peak, liveness.allocator.peak_reserved_bytes, parts, at)


def _held(optimizers: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group["params"]:
                yield "parameters", _local(parameter)
                if parameter.grad is not None:
                    yield "gradients", _local(parameter.grad)
        for state in getattr(optimizer, "state", {}).values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield "optimizer_state", _local(value)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor's part on this rank."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
