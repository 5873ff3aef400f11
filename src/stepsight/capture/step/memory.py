"""What a rank's GPU holds at the fullest moment of its step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepsight.capture.recording.memory import Liveness


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peaks during the step, in bytes as the caching allocator counts them; ``parts_bytes`` add up to the
    active peak. ``excess_bytes`` is what was asked for beyond the GPU's memory."""

    peak_active_bytes: int
    peak_reserved_bytes: int
    parts_bytes: dict[str, int]
    peak_operator: str
    excess_bytes: int


def memory_use(liveness: Liveness, optimizers: Iterable[Any], operators: Sequence[str]) -> MemoryUse:
    """At the end of a step, when parameters, gradients and optimizer states are all there."""
    allocator = liveness.allocator
    alive = liveness.alive()
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
    peak = allocator.peak_active_bytes
    parts["activations_and_temporaries"] = max(peak - sum(parts.values()), 0)
    return MemoryUse(
        peak, allocator.peak_reserved_bytes, parts, _at(liveness.peak.call, operators), allocator.excess_bytes
    )


def _at(call: int, operators: Sequence[str]) -> str:
    """The call at the peak; calls are counted from one."""
    return operators[call - 1] if 0 < call <= len(operators) else ""


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
