"""Kernels that stand for many: the times of their parts, looked up once and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepsight.estimate import Estimate, Estimates, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.families import category
from stepsight.platform.load import Platform
from stepsight.program.job import Kernel
from stepsight.simulate.sustained import slowdown


def estimate_parts(kernels: Sequence[Kernel], platform: Platform) -> dict[Kernel, Estimate]:
    """The time of every distinct part of these kernels."""
    parts = list(dict.fromkeys(part for kernel in kernels for part, _ in kernel.parts))
    return platform.known_kernels.estimate(parts)


def summed(kernel: Kernel, known: Mapping[Kernel, Estimate], gpu: GpuSpec) -> Estimate:
    """Its parts one behind the other. Their errors are alike, so their spreads are averaged by time.

    They run for hours (`sustained`), with the GPU's gap between two of them (the one behind the last belongs
    to the walk).
    """
    times = np.array(
        [
            known[part].time_us * slowdown(gpu, category(part.family), part.dtype) * n
            for part, n in kernel.parts
        ]
    )
    total = float(times.sum())
    weights = times / total if total > 0 else np.full(len(times), 1 / len(times))
    spread = float(weights @ [known[part].spread for part, _ in kernel.parts])
    most = known[kernel.parts[int(times.argmax())][0]]
    gaps = gpu.kernel_gap_us * (sum(n for _, n in kernel.parts) - 1)
    return Estimate(total + gaps, Source(most.source), spread, most.note)


def with_condensed(kernels: Sequence[Kernel], platform: Platform) -> Estimates:
    """Times of kernels of which some stand for many."""
    single = [k for k in kernels if not k.parts]
    plain = platform.kernels.estimate(single) if single else None
    if plain is not None and len(single) == len(kernels):
        return plain
    known = estimate_parts(kernels, platform)
    found: list[Estimate] = []
    at = 0
    for kernel in kernels:
        if kernel.parts:
            found.append(summed(kernel, known, platform.spec.gpu))
        elif plain is not None:
            found.append(plain[at])
            at += 1
    return Estimates(
        np.array([e.time_us for e in found]),
        np.array([int(e.source) for e in found], dtype=np.int64),
        np.array([e.spread for e in found]),
        {i: e.note for i, e in enumerate(found) if e.note},
    )
