"""What kernels that stream memory cost, by family and by the operator's name.

``time = start + (bytes / (share × bandwidth)) ⊕ (elements / (rate × multiprocessors × clock))`` where ⊕
is the larger of the two, rounded where they meet. Most kernels wait for memory; those that compute an
index for every element, convert types one by one or call a transcendental function wait for
instructions: they issue the same few elements per multiprocessor and clock on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from stepsight.constants import area, table
from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch

C = area("kernels")


@dataclass(frozen=True, slots=True)
class Stream:
    """What a family costs to start, its share of memory bandwidth when large, its rate of instructions.

    ``rate`` is elements per multiprocessor and clock; 0 where instructions never bound the kernel;
    ``half_only``: they bound it in half precision alone.
    ``traffic`` is the part of the family's bytes that the kernel really moves.
    """

    start_us: float
    share: float
    spread: float
    per_row_us: float = 0.0
    rate: float = 0.0
    traffic: float = 1.0
    half_only: bool = False


_TABLE = table("streams")
STREAMS = msgspec.convert(_TABLE["families"], dict[str, Stream])
VARIANTS = {
    (family, name): stream
    for family, streams in msgspec.convert(_TABLE["variants"], dict[str, dict[str, Stream]]).items()
    for name, stream in streams.items()
}
"""Kernels of a family that behave unlike the rest of it, by the operator's plain name."""
AMD_SHARES = msgspec.convert(_TABLE["amd_shares"], dict[str, float])
AMD_START_US = C.AMD_START_US


def meet(memory_us: FloatArray, instructions_us: FloatArray) -> FloatArray:
    """The larger of two bounds, rounded where they meet."""
    large = np.maximum(memory_us, instructions_us)
    small = np.minimum(memory_us, instructions_us)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(large > 0, small / large, 0.0)
    return np.asarray(large * (1 + share**C.MEETING) ** (1 / C.MEETING))


ONE_BLOCK_KEYS = 2304
"""Keys that one block sorts: 256 threads with nine keys of eight bytes (cub's code)."""


def passes_us(batch: Batch, start_us: float) -> FloatArray:
    """The starts of a radix sort's passes, one for every digit of eight bits (those stated, else all of a
    key); none where one block sorts everything."""
    passes = np.where(batch.dims["passes"] > 0, batch.dims["passes"], batch.element_bytes)
    return np.where(batch.dims["elements"] > ONE_BLOCK_KEYS, passes * start_us, 0.0)
