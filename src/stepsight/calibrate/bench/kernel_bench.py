"""Kernels timed as a step runs them: among others, all ranks at once, operands as a step leaves them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepsight.kernels.columns import batches
from stepsight.program.job import Kernel
from stepsight.run.worker import Rank

ROUND_BYTES = 160 << 20
"""Operands of one round: several last-level caches, so that what is not fresh has gone cold."""
ROUND_KERNELS = 48
WARM_ROUNDS = 2
TINY = {
    "m": 4, "n": 4, "k": 4, "rows": 4, "cols": 4, "table_rows": 4, "elements": 16, "bytes": 64, "batch": 1,
    "c_in": 4, "c_out": 4, "h": 8, "w": 8, "q": 4, "kv": 4, "heads": 1, "kv_heads": 1, "tensors": 2,
    "samples": 2,
}  # fmt: skip
"""Most of each size in a kernel that only warms the code."""


def rounds_of(kernels: Sequence[Kernel], seed: int) -> Iterator[list[Kernel]]:
    """Kernels in mixed rounds of about `ROUND_BYTES`: neighbours differ, as they do in a step."""
    order = list(kernels)
    random.Random(seed).shuffle(order)
    held, size = [], 0.0
    for kernel in order:
        held.append(kernel)
        size += operand_bytes(kernel)
        if size >= ROUND_BYTES or len(held) >= ROUND_KERNELS:
            yield held
            held, size = [], 0.0
    if held:
        yield held


def operand_bytes(kernel: Kernel) -> float:
    """About how much memory the kernel's operands take."""
    batch = next(iter(batches([kernel])))
    return float(batch.bytes[0]) if batch.known else 0.0


def tiny(kernel: Kernel) -> Kernel:
    """The same code with next to nothing to do."""
    sizes = {name: min(size, TINY.get(name, size)) for name, size in kernel.dims}
    if "elements" in sizes:
        share = sizes["elements"] / max(kernel.dim("elements"), 1.0)
        sizes |= {n: s * share for n, s in kernel.dims if n in ("read_bytes", "write_bytes")}
    elif "inputs" in sizes:
        sizes |= dict.fromkeys(("read_bytes", "write_bytes"), 16.0 * sizes["inputs"])
    return replace(kernel, dims=tuple(sizes.items()))


def measure(rank: Rank, kernels: Sequence[Kernel], repeats: int, seed: int) -> list[list[float]]:
    """In every rank at the same time: one round, repeated; the times of each kernel in µs."""
    meet(rank)
    return time_kernels(rank, kernels, repeats, seed * 101 + rank.rank)


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    import torch.distributed as dist

    if rank.ranks > 1:
        dist.barrier()


def time_kernels(rank: Rank, kernels: Sequence[Kernel], repeats: int, seed: int) -> list[list[float]]:
    """Repeated times of each kernel, the kernels in a new order in every repeat."""
    import torch

    from stepsight.calibrate.bench.operands import touch
    from stepsight.calibrate.bench.stopwatch import Stopwatch
    from stepsight.calibrate.bench.torch_kernels import prepare

    stopwatch, shuffle = Stopwatch(rank.device, own_time=len(rank.cores) == 1), random.Random(seed)
    times: list[list[float]] = [[] for _ in kernels]
    held: list[Any] = [None] * len(kernels)
    with torch.no_grad():
        calls = [prepare(kernel, rank.device) for kernel in kernels]
        twins = [prepare(tiny(kernel), rank.device) for kernel in kernels]
        order = [i for i, call in enumerate(calls) if call is not None]
        for repeat in range(WARM_ROUNDS + repeats):
            shuffle.shuffle(order)
            for i in order:
                call, twin = calls[i], twins[i]
                if call is None or twin is None:
                    continue
                twin.call()  # a step has run this code a moment ago, on other data
                touch(call.fresh)
                stopwatch.synchronize()
                # A step writes its results where it wrote them a step ago, not where it has just freed some.
                held[i] = None
                taken, held[i] = stopwatch.timed(call.call)
                if repeat >= WARM_ROUNDS:
                    times[i].append(taken)
    return times
