"""How long the stages of a pipeline take together, given how long each pass takes.

A pass begins when its stage is free and its input has come. Once every stage works at the pace of the
slowest, each further micro-batch adds the same time; this many are walked until that holds, the rest is
added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stepsight.workload.llm.schedule import Item, orders

CONVERGED = 1e-6
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
    pieces = range(stages * virtual)
    times = [duration(Item(kind, p, 0)) for kind in _kinds(schedule) for p in pieces]
    done: list[float] = []
    free, busy = [0.0] * stages, [0.0] * stages
    for stage, work, needs, link in _events(schedule, stages, m, virtual):
        clock, took = free[stage], times[work]
        if needs >= 0:
            came = done[needs] + transfer_us[link]
            clock = came if came > clock else clock
        free[stage] = clock = clock + took
        busy[stage] += took
        done.append(clock)
    return Walked(tuple(free), tuple(busy))


@lru_cache(maxsize=16)
def _events(schedule: str, stages: int, m: int, virtual: int) -> tuple[tuple[int, int, int, int], ...]:
    """All passes, each after what it needs: stage, place of its duration, the event whose result it takes
    (-1: none) and the link that brings it. Configurations with the same pipeline share it."""
    pieces, kinds = stages * virtual, _kinds(schedule)
    order = orders(schedule, stages, m, virtual)
    number: dict[tuple[str, int, int], int] = {}
    events: list[tuple[int, int, int, int]] = []
    at = [0] * stages
    while len(events) < sum(map(len, order)):
        before = len(events)
        for s, items in enumerate(order):
            for item in items[at[s] :]:
                needs, link = _source(item, s, stages, pieces)
                if needs is not None and needs not in number:
                    break
                work = kinds.index(item.kind) * pieces + item.piece
                number[item.kind, item.piece, item.micro_batch] = len(events)
                events.append((s, work, -1 if needs is None else number[needs], link))
                at[s] += 1
        if len(events) == before:
            raise ValueError("the schedule waits for itself")
    return tuple(events)


def _source(item: Item, stage: int, stages: int, pieces: int) -> tuple[tuple[str, int, int] | None, int]:
    """The pass whose result another takes, and the link between their stages."""
    if item.kind == "F" and item.piece:
        return ("F", item.piece - 1, item.micro_batch), (stage - 1) % stages
    if item.kind == "B" and item.piece < pieces - 1:
        return ("B", item.piece + 1, item.micro_batch), stage
    return None, stage
