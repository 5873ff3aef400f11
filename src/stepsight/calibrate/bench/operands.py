"""Operands of a kernel that is about to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepsight.program.job import Kernel

_DTYPES = {
    "fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "fp64": torch.float64, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A kernel ready to run: ``call`` runs it, ``fresh`` are the operands its producer just wrote."""

    call: Callable[[], Any]
    fresh: tuple[torch.Tensor, ...] = ()


class Operands:
    """Makes the operands of one kernel on one device."""

    def __init__(self, kernel: Kernel, device: str) -> None:
        self.kernel, self.device = kernel, device
        self.dtype = _DTYPES.get(kernel.dtype, torch.float32)

    def tensor(self, *shape: float) -> torch.Tensor:
        sizes = [max(int(s), 1) for s in shape]
        if self.dtype.is_floating_point:
            return torch.rand(sizes, dtype=torch.float32, device=self.device).to(self.dtype)
        return torch.ones(sizes, dtype=self.dtype, device=self.device)

    def indices(self, count: float, below: float) -> torch.Tensor:
        return torch.randint(0, max(int(below), 1), (max(int(count), 1),), device=self.device)

    def dim(self, name: str, default: float = 1.0) -> int:
        return max(int(self.kernel.dim(name, default)), 1)


def touch(tensors: Sequence[torch.Tensor]) -> None:
    """Write the operands that a producer would have just written."""
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.mul_(1.0)
