"""The memory that streaming kernels see on a board: its share of the bandwidth, and what L2 answers instead.

Boards of data centres with GDDR memory correct errors over the same bus that carries the data. A cache much
faster than its memory (Ada's boards) answers everything as long as all operands fit, and next to
nothing beyond: reads and writes of one kernel pass over them in the same order every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.machine import resident_threads

C = area("kernels")
SLOW_MEMORY = C.number("SLOW_MEMORY")


@dataclass(frozen=True, slots=True)
class RowPasses:
    """How often a row-wise kernel reads its rows, of how many tensors, with how many threads a row; rows of
    up to ``kept_bytes`` stay in registers or shared memory."""

    passes: int
    operands: int
    threads: int
    kept_bytes: float = 0.0


SHARED_ROW_BYTES = 48 * 1024
"""Shared memory of a block without opting in to more (NVIDIA's programming guide)."""
ROW_PASSES = {
    "softmax": RowPasses(3, 1, 512, SHARED_ROW_BYTES),
    "softmax_backward": RowPasses(2, 2, 512, SHARED_ROW_BYTES),
    "layer_norm": RowPasses(2, 1, 128),
}
"""PyTorch's code: softmax finds the largest value, the sum, then writes; norms find moments, then write."""

LATENCY_BOUND = frozenset({"softmax", "layer_norm"})
"""Row-wise kernels, which read a row before they write it: a hit in L2 shortens them little."""


def board_share(spec: GpuSpec) -> float:
    """What a board's memory gives of its bandwidth, relative to boards with HBM."""
    if spec.inline_ecc:
        return C.INLINE_ECC
    return C.TURING_MEMORY if spec.architecture == "turing" else 1.0


def cache_speed(batch: Batch, spec: GpuSpec, traffic: FloatArray) -> FloatArray:
    """How many times faster than device memory the traffic moves, by what stays in L2."""
    ratio = spec.l2_gbps / spec.memory_gbps
    if spec.l2_mb < C.LARGE_L2_MB:
        return np.ones(len(batch))
    if ratio > SLOW_MEMORY:
        # The family's share of bandwidth is of the cache's then.
        filled = traffic / (spec.l2_mb * 2**20)
        hits = _found_share(batch) * np.interp(filled, (1.0, C.CACHE_SPILL, 2.0), (1.0, C.SPILLED_HITS, 0.0))
        faster = ratio / board_share(spec) * (C.ROWS_IN_CACHE if batch.family in LATENCY_BOUND else 1.0)
        return np.asarray(1 / (1 - hits + hits / faster))
    if batch.family in LATENCY_BOUND:
        return np.ones(len(batch))
    filled = traffic / (C.IN_CACHE * spec.l2_mb * 1e6)
    return np.asarray(1 + (max(C.CACHE_SPEEDUP, C.L2_REACHED * ratio) - 1) * np.clip(2 - filled, 0, 1))


def reread_bytes(batch: Batch, spec: GpuSpec) -> FloatArray:
    """What passes over rows after the first read from memory: all of it where the rows that all blocks work
    on at a time do not fit into L2, none where they take little more than half of it."""
    passes = ROW_PASSES.get(batch.family)
    if passes is None or spec.vendor != "nvidia":
        return np.zeros(len(batch))
    row = batch.dims["cols"] * batch.element_bytes
    operands = row * passes.operands
    in_flight = operands * spec.sms * max(1, resident_threads(spec) // passes.threads)
    missed = np.clip(1.5 * in_flight / (spec.l2_mb * 2**20) - 0.9, 0.0, 1.0)
    kept = row <= passes.kept_bytes
    again = batch.dims["rows"] * operands * (passes.passes - 1)
    # The first pass of a log-softmax's gradient adds up the incoming gradient alone.
    again = np.where(batch.where(lambda kind: kind.variant == "log_softmax"), again / passes.operands, again)
    return np.where(kept, 0.0, again * missed)


def _found_share(batch: Batch) -> FloatArray:
    """What of a kernel's operands may be in the cache at all: a gradient's kernel finds the gradient that was
    just made, not what the forward left long before it."""
    backward = batch.where(lambda kind: kind.variant.endswith("_backward"))
    return np.where(backward | batch.family.endswith("_backward"), C.FOUND_BACKWARD, 1.0)
