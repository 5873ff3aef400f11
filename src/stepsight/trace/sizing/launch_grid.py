"""What a launch grid says by itself: how many elements its blocks cover."""

from __future__ import annotations

import re
from math import prod

from stepsight.trace.reading.events import Event

GEMM = re.compile(r"gemm|nvjet|cutlass|xmma", re.IGNORECASE)
TILE = re.compile(r"(?:tilesize|(?<![a-zA-Z\d]))(\d{2,3})x(\d{2,3})(?!\d)")
_WORK_ITEMS = re.compile(r"^(Cijk|igemm|batched_transpose|SubTensorOp|MIOpen|miopen)")
"""Kernels of AMD's libraries: their traces give the grid in work items, not in blocks."""
_WORK_PER_BLOCK = re.compile(r"elementwise_kernel<(\d+),\s*(\d+)")


def elements_by_grid(event: Event) -> float:
    """Elements that a kernel's grid covers."""
    return float(prod(grid_blocks(event))) * elements_per_block(event)


def grid_blocks(event: Event) -> tuple[int, int, int]:
    """Blocks in each direction."""
    blocks = (*event.grid(), 1, 1, 1)[:3]
    if _WORK_ITEMS.match(event.name):
        threads = (*event.block(), 1, 1, 1)[:3]
        blocks = tuple(max(b // max(t, 1), 1) for b, t in zip(blocks, threads, strict=True))
    return blocks[0], blocks[1], blocks[2]


def elements_per_block(event: Event) -> float:
    """Elements that one block handles: the grid tells the size no finer than this."""
    threads = prod(event.block() or (1,))
    stated = _WORK_PER_BLOCK.search(event.name)
    if "vectorized_elementwise" in event.name or "unrolled_elementwise" in event.name:
        # Four elements a thread, whatever the vector width (thread_work_size in PyTorch).
        return float(threads * 4)
    if event.name.startswith("triton"):
        # Inductor's blocks hold 1024 elements of 128 threads (its 1-D pointwise configuration).
        return float(threads * 8)
    if stated:
        return float(int(stated[1]) * int(stated[2]))
    return float(threads)


def is_elementwise(event: Event) -> bool:
    """Whether it is one of PyTorch's element-wise kernels, whose grid counts elements."""
    return "elementwise_kernel" in event.name
