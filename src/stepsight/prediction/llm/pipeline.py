"""How long the stages of a pipeline take together, given how long each pass takes.

A pass begins when its stage is free and its input has come. Once every stage works at the pace of the
slowest, each further micro-batch adds the same time; so many are walked until that holds, the rest is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepsight.workload.llm.schedule import Item, orders

SETTLED = 1e-6
"""Relative difference of two periods below which they are the same."""


@dataclass(frozen=True, slots=True)
class Walked:
    """When each stage ends its last pass, and how long it worked."""

    end_us: tuple[float, ...]
    busy_us: tuple[float, ...]


def walk(
    schedule: str,
    stages: int,
    micro_batches: int,
    virtual: int,
    duration: Callable[[Item], float],
    transfer_us: Sequence[float],
) -> Walked:
    """The ends of all stages. ``transfer_us[s]`` is a message from stage s to the next one (and back)."""
    if stages == 1 and virtual == 1:
        busy = sum(duration(Item(kind, 0, 0)) for kind in _kinds(schedule)) * micro_batches
        return Walked((busy,), (busy,))
    step = stages if virtual > 1 else 1
    few = step * (2 + 3 * max(1, stages // step)) if virtual > 1 else 3 * stages + 4
    if micro_batches <= few + 2 * step:
        return _walk(schedule, stages, micro_batches, virtual, duration, transfer_us)
    few += (micro_batches - few) % step
    less, more = (_walk(schedule, stages, m, virtual, duration, transfer_us) for m in (few, few + step))
    left = (micro_batches - few - step) / step
    return Walked(
        tuple(b + left * (b - a) for a, b in zip(less.end_us, more.end_us, strict=True)),
        tuple(b + left * (b - a) for a, b in zip(less.busy_us, more.busy_us, strict=True)),
    )


def _kinds(schedule: str) -> str:
    return "FBW" if schedule == "zero_bubble" else "FB"


def _walk(
    schedule: str,
    stages: int,
    m: int,
    virtual: int,
    duration: Callable[[Item], float],
    transfer_us: Sequence[float],
) -> Walked:
    pieces = stages * virtual
    order = orders(schedule, stages, m, virtual)
    times = {(kind, p): duration(Item(kind, p, 0)) for kind in _kinds(schedule) for p in range(pieces)}
    done: dict[tuple[str, int, int], float] = {}
    free, at, busy = [0.0] * stages, [0] * stages, [0.0] * stages
    waiting = list(range(stages))
    while waiting:
        blocked = []
        moved = False
        for s in waiting:
            items, i = order[s], at[s]
            clock = free[s]
            while i < len(items):
                item = items[i]
                kind, p, k = item.kind, item.piece, item.micro_batch
                if kind == "F":
                    came = done.get(("F", p - 1, k)) if p else 0.0
                    link = (s - 1) % stages
                elif kind == "B":
                    came = done.get(("B", p + 1, k)) if p < pieces - 1 else 0.0
                    link = s
                else:
                    came, link = 0.0, s
                if came is None:
                    break
                if came > 0.0:
                    came += transfer_us[link]
                took = times[kind, p]
                clock = (came if came > clock else clock) + took
                done[kind, p, k] = clock
                busy[s] += took
                i += 1
                moved = True
            at[s], free[s] = i, clock
            if i < len(items):
                blocked.append(s)
        if blocked and not moved:
            raise ValueError("the schedule waits for itself")
        waiting = blocked
    return Walked(tuple(free), tuple(busy))
