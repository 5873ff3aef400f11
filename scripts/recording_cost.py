"""What recording an argument of a Triton launch costs: a tensor, a number, an object that holds a tensor.

Needs torch (a CPU build will do). Prints the median µs of entering and leaving one record,
with and without ``record_shapes``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass
class Descriptor:
    """Shaped like Triton's tensor descriptor: a tensor with its sizes and a block's."""

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides) or self.base.data_ptr() % 16:
            raise ValueError("sizes and strides must match, and the tensor must be aligned")

    @staticmethod
    def of(tensor: torch.Tensor, block_shape: list[int]) -> Descriptor:
        return Descriptor(tensor, list(tensor.shape), list(tensor.stride()), block_shape)


def median_us(arguments: list[Any], repeats: int = 50) -> float:
    """One record of a launch with these arguments."""
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        with torch._C._profiler._RecordFunctionFast("launch", arguments, {"kernel_backend": "triton"}):
            pass
        spent.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(spent)


def main() -> None:
    tensor = torch.zeros(128, 128)
    descriptor = Descriptor.of(tensor, [64, 64])
    for shapes in (False, True):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes):
            for what, arguments in (
                ("4 tensors, 3 numbers", [tensor] * 4 + [1, 2, 3]),
                ("1 descriptor", [descriptor]),
                ("4 descriptors, 3 numbers", [descriptor] * 4 + [1, 2, 3]),
            ):
                print(f"record_shapes={shapes!s:5}  {what:26} {median_us(arguments):8.1f} µs")


if __name__ == "__main__":
    main()
