"""Collectives between real processes, and how much they and compute slow each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from stepsight.calibrate.kernel_bench import Stopwatch
from stepsight.run.worker import Rank

WARM = 2
CONTENDED_BYTES = (1 << 19, 1 << 21, 1 << 23)
MOST_CALLS = 2000
MOST_US = 1.5e6
"""Time for all rounds of one size."""


def starter(kind: str, size: int, rank: Rank) -> Callable[[], Any]:
    """A function that starts one collective of ``size`` bytes (nccl-tests' convention) and returns it."""
    n = rank.ranks
    elements = max(size // 4 // n, 1) * n
    large = torch.ones(elements, device=rank.device)
    other = torch.empty_like(large)
    small = torch.ones(elements // n, device=rank.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(large, async_op=True)
    if kind == "all_to_all":
        return lambda: dist.all_to_all_single(other, large, async_op=True)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(large, small, async_op=True)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(small, large, async_op=True)
    return lambda: dist.broadcast(large, 0, async_op=True)


def measure(rank: Rank, wanted: Sequence[tuple[str, int]], repeats: int) -> list[list[float]]:
    """Each size of each kind, interleaved; every rank's own repeated times.

    Calls follow one another, so each starts when the slowest rank has ended the one before.
    """
    stopwatch = Stopwatch(rank.device)
    starts = [starter(kind, size, rank) for kind, size in wanted]
    rounds = _affordable(rank, stopwatch, starts, wanted, repeats)
    times: list[list[float]] = [[] for _ in wanted]
    for repeat in range(repeats + WARM):
        for i, start in enumerate(starts):
            if repeat >= rounds[i]:
                continue
            dist.barrier()
            taken = [stopwatch.time_us(partial(_finish, start)) for _ in range(_calls(wanted[i][1]))]
            if repeat >= WARM or rounds[i] <= WARM:
                times[i] += [round(t, 2) for t in taken[1:]]
    return times


def _affordable(
    rank: Rank, stopwatch: Stopwatch, starts: Sequence[Callable[[], Any]], wanted: Sequence[tuple[str, int]],
    repeats: int,
) -> list[int]:  # fmt: skip
    """Rounds of each size, fewer where a slow link makes one take long; rank 0 decides for all."""
    once = torch.tensor([stopwatch.time_us(partial(_finish, start)) for start in starts], device=rank.device)
    dist.broadcast(once, 0)
    calls = [_calls(size) for _, size in wanted]
    return [
        max(1, min(repeats + WARM, int(MOST_US / (float(t) * n))))
        for t, n in zip(once.tolist(), calls, strict=True)
    ]


def _repeat(work: Callable[[], Any], calls: int) -> None:
    for _ in range(calls):
        work()


def _finish(start: Callable[[], Any]) -> None:
    start().wait()


def _calls(size: int) -> int:
    """Calls in a row: the first one still carries the barrier's ragged end."""
    return 6 if size <= 1 << 20 else 3


def measure_contention(rank: Rank, repeats: int) -> list[dict[str, Any]]:
    """Compute and an all_reduce alone and together: how long each takes in either case."""
    stopwatch, rows = Stopwatch(rank.device), []
    for size in CONTENDED_BYTES:
        start = starter("all_reduce", size, rank)
        for name, work in _computations(rank).items():
            calls = _enough(rank, stopwatch, start, work)
            for _ in range(repeats):
                rows.append({"bytes": size, "compute": name, **_together(stopwatch, start, work, calls)})
    return rows


def _computations(rank: Rank) -> dict[str, Callable[[], Any]]:
    a, b = torch.rand(256, 512, device=rank.device), torch.rand(512, 256, device=rank.device)
    stream = torch.rand(1 << 20, device=rank.device)
    return {"gemm": lambda: torch.mm(a, b), "stream": lambda: torch.add(stream, 1.0)}


def _enough(rank: Rank, stopwatch: Stopwatch, start: Callable[[], Any], work: Callable[[], Any]) -> int:
    """Calls that take about three times as long as the collective, the same number on every rank."""
    work()
    alone = min(stopwatch.time_us(partial(_finish, start)) for _ in range(4))
    once = min(stopwatch.time_us(work) for _ in range(8))
    calls = torch.tensor([min(max(2, round(3 * alone / once)), MOST_CALLS)], device=rank.device)
    dist.broadcast(calls, 0)
    return int(calls.item())


def _together(
    stopwatch: Stopwatch, start: Callable[[], Any], work: Callable[[], Any], calls: int
) -> dict[str, float]:
    dist.barrier()
    start().wait()
    alone = stopwatch.time_us(partial(_finish, start))
    compute = stopwatch.time_us(partial(_repeat, work, calls))
    dist.barrier()
    done: list[float] = []
    begin = time.perf_counter()
    pending = start()
    pending.get_future().then(lambda _: done.append(time.perf_counter()))
    _repeat(work, calls)
    stopwatch.synchronize()
    compute_end = time.perf_counter()
    pending.wait()
    stopwatch.synchronize()
    end = done[0] if done else time.perf_counter()
    return {
        "comm_alone_us": round(alone, 1), "compute_alone_us": round(compute, 1),
        "comm_us": round((end - begin) * 1e6, 1), "compute_us": round((compute_end - begin) * 1e6, 1),
    }  # fmt: skip
