"""The constants of batched half-precision products, from those that A100's library serves well."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from lab.fit.kernels.half import Timed
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.tiles import BatchedConstants, batched_us

GPU = "A100-SXM4-80G"
LONG_REDUCTION = (("bmm", "forward"), ("baddbmm", "backward"))
"""Operators whose every product sums over the sequence, not over a head."""
MEMORY = np.arange(0.76, 0.96, 0.02)
MATRIX = np.arange(0.60, 0.80, 0.02)
START_US = (3.0, 6.0)
"""Tried values."""


def fit_constants(operators: Iterable[Timed]) -> BatchedConstants:
    """The constants with the least mean error of the logarithm, on rows that are not left out."""
    spec = load_gpu(GPU)
    chosen = [
        timed.rows(~timed.left_out)
        for timed in operators
        if timed.operator.gpu == GPU and (timed.operator.op, timed.operator.direction) in LONG_REDUCTION
    ]

    def error(constants: BatchedConstants) -> float:
        off = []
        for timed in chosen:
            kernels = timed.operator.kernels
            total = np.sum([batched_us(kernel, spec, constants=constants) for kernel in kernels], axis=0)
            off.append(np.abs(np.log(total / timed.time_us)))
        return float(np.concatenate(off).mean())

    tried = [BatchedConstants(round(a, 2), round(b, 2), c) for a, b, c in product(MEMORY, MATRIX, START_US)]
    return min(tried, key=error)
