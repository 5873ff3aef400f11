"""A pipeline whose hosts poll: how long its stages take if a host only looks every so often whether a message
went through.

Nanotron announces every tensor between stages by two small messages. In the version that a part of the H100
sweep ran, a host slept 0.1 s between two looks at each of them (`_send_meta` and `_recv_meta` of
`src/nanotron/parallel/pipeline_parallel/p2p.py` in its repository). A message needs both hosts, so each of
them leaves at a look of its own, and a pass that takes less than a sleep is hidden by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

ANNOUNCEMENTS = 2
"""Small messages ahead of every tensor: its kind and size, then its shape and strides."""
FORWARD_TENSORS, BACKWARD_TENSORS = 2, 1
"""Tensors between two stages: hidden states and the mask of the sequence; the gradient of the former."""
LATENCY_US = 50.0
"""A small message itself, once both hosts have come. Only that it is not nothing counts."""
MOST_WALKED, SLOPE_OVER = 256, 64
"""Micro-batches that are walked at most, and the last of them whose mean pace the others keep."""

FORWARD, BACKWARD, MEET = range(3)


@dataclass(frozen=True, slots=True)
class StagePasses:
    """One stage's forward and backward pass in µs: what the host takes to launch it, and the device."""

    host_us: tuple[float, float]
    device_us: tuple[float, float]


def polled_ends_us(
    stages: Sequence[StagePasses], micro_batches: int, transfer_us: Sequence[float], poll_us: float
) -> tuple[float, ...]:
    """When each stage ends its last pass, in 1F1B order. ``transfer_us[s]``: a tensor from stage s to the
    next one (and back)."""
    if micro_batches <= MOST_WALKED:
        return _walk(stages, micro_batches, transfer_us, poll_us)
    few = max(len(stages), MOST_WALKED - SLOPE_OVER)
    less, more = (_walk(stages, m, transfer_us, poll_us) for m in (few, few + SLOPE_OVER))
    left = (micro_batches - few - SLOPE_OVER) / SLOPE_OVER
    return tuple(b + left * (b - a) for a, b in zip(less, more, strict=True))


def _walk(
    stages: Sequence[StagePasses], m: int, transfer_us: Sequence[float], poll_us: float
) -> tuple[float, ...]:
    """Every stage goes on until it must meet another that has not come yet."""
    programs = _programs(len(stages), m)
    at, host, device = [0] * len(stages), [0.0] * len(stages), [0.0] * len(stages)
    waiting: dict[tuple[int, ...], int] = {}
    able = list(range(len(stages)))
    while able:
        s = able.pop()
        for what, message in programs[s][at[s] :]:
            if what != MEET:
                begun = max(host[s], device[s])
                host[s] += stages[s].host_us[what]
                device[s] = max(begun + stages[s].device_us[what], host[s])
                at[s] += 1
                continue
            other = waiting.pop(message, None)
            if other is None:
                waiting[message] = s
                break
            _meet(s, other, host, device, transfer_us[message[1]], poll_us)
            at[s] += 1
            at[other] += 1
            able.append(other)
    return tuple(max(pair) for pair in zip(host, device, strict=True))


def _meet(a: int, b: int, host: list[float], device: list[float], transfer_us: float, poll_us: float) -> None:
    """Two hosts announce a tensor to each other; the first announcement waits for both devices."""
    begun = max(device[a], device[b])
    for _ in range(ANNOUNCEMENTS):
        through = max(host[a], host[b], begun) + LATENCY_US
        for stage in (a, b):
            host[stage] += poll_us * max(1, math.ceil((through - host[stage]) / poll_us))
    arrived = max(host[a], host[b], begun) + transfer_us
    device[a], device[b] = max(device[a], arrived), max(device[b], arrived)


Step = tuple[int, tuple[int, ...]]


@lru_cache(maxsize=16)
def _programs(stages: int, m: int) -> tuple[tuple[Step, ...], ...]:
    return tuple(tuple(_program(s, stages, m)) for s in range(stages))


def _program(s: int, stages: int, m: int) -> Iterator[Step]:
    """What a stage's host does: inputs come, the last gradient goes back, the pass forward, its result goes
    on, the next gradient comes, the pass backward. A message is known by its direction, the lower of its
    stages, the micro-batch and the tensor."""

    def input_of(i: int, gone_back: int | None) -> Iterator[Step]:
        if s == 0:
            return
        yield from ((MEET, (FORWARD, s - 1, i, k)) for k in range(FORWARD_TENSORS))
        if gone_back is not None:
            yield from gradient_to_the_last(gone_back)

    def result_of(i: int) -> Iterator[Step]:
        if s < stages - 1:
            yield from ((MEET, (FORWARD, s, i, k)) for k in range(FORWARD_TENSORS))

    def gradient_of(j: int) -> Iterator[Step]:
        if s < stages - 1:
            yield from ((MEET, (BACKWARD, s, j, k)) for k in range(BACKWARD_TENSORS))

    def gradient_to_the_last(j: int) -> Iterator[Step]:
        if s:
            yield from ((MEET, (BACKWARD, s - 1, j, k)) for k in range(BACKWARD_TENSORS))

    warmup = min(stages - 1 - s, m)
    for i in range(warmup):
        yield from input_of(i, None)
        yield FORWARD, ()
        yield from result_of(i)
    for i in range(warmup, m):
        j = i - warmup
        yield from input_of(i, j - 1 if j else None)
        yield FORWARD, ()
        yield from result_of(i)
        yield from gradient_of(j)
        yield BACKWARD, ()
    if m > warmup:
        yield from gradient_to_the_last(m - warmup - 1)
    for j in range(m - warmup, m):
        yield from gradient_of(j)
        yield BACKWARD, ()
        yield from gradient_to_the_last(j)
