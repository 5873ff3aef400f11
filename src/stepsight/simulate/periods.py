"""Blocks that repeat are walked until every clock advances evenly, then continued by the period.

The walk is linear in max and plus: shift every clock at the start of a block, and the block shifts. So once
all clocks of all ranks advanced by the same time in two blocks in a row, they do so in every later block;
stages that wait for each other in turns may do so every second or third block only (`repeats`). A clock may
also advance more slowly for ever: a host that runs ahead of its device. It does not depend on the faster ones
if it ended a block before they began it, and what it gives them comes ever earlier.

A state is what later operators can see at a block's boundary: the host's clock, the streams' clocks and the
ends of launches that something later waits for, ``(values, configurations, ranks)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray
from stepsight.simulate.rendezvous import Clocks

EVEN = 1e-6
"""Advances that differ by less than this share of the period are even: the walk's rounding."""
NEARLY = 1e-4
"""The same where contention has converged only so far: what a step may be off by."""


def continued(states: Sequence[FloatArray], blocks: int) -> FloatArray:
    """The state after this many more blocks: the last ones again, half of those listed where none repeat."""
    every = repeats(states) or max(1, (len(states) - 1) // 2)
    last, before = states[-1], states[-1 - every]
    whole, rest = divmod(blocks, every)
    return np.asarray(last + whole * (last - before) + (states[-1 - every + rest] - before), dtype=np.float64)


def repeats(states: Sequence[FloatArray]) -> int:
    """After how many blocks all clocks advance as before: the cyclicity of a max-plus system; 0 if never."""
    for every in range(1, (len(states) - 1) // 2 + 1):
        after, here, before = (states[-1 - i * every] for i in range(3))
        if (np.abs(after - 2 * here + before) <= NEARLY * max(float((after - here).max()), 1.0)).all():
            return every
    return 0


def evenly(lanes: Sequence[Sequence[FloatArray]]) -> npt.NDArray[np.bool_]:
    """Of every configuration, whether all clocks of all lanes advance evenly."""
    seen = [states for states in lanes if len(states) > 2]
    if not seen:
        return np.ones(1, dtype=bool)
    found = np.zeros(seen[0][0].shape[1], dtype=bool)
    for every in range(1, (min(map(len, seen)) - 1) // 2 + 1):
        before, here, after = (
            np.concatenate([_values(states[-1 - i * every]) for states in seen], axis=1) for i in (2, 1, 0)
        )
        hosts = [np.broadcast_to(states[-1 - every][:1], states[-1].shape) for states in seen]
        host = np.concatenate([_values(each) for each in hosts], axis=1)
        found |= [_even(*rows) for rows in zip(before, here, after, host, strict=True)]
    return found


def same_advance(before: Sequence[Clocks], after: Sequence[Clocks]) -> bool:
    """Every clock of every lane moved by the same time over a step, so that the next step is like it."""
    moves = [
        np.stack([b - a for a, b in zip((x.host_us, *x.stream_us), (y.host_us, *y.stream_us), strict=True)])
        for x, y in zip(before, after, strict=True)
    ]
    most = np.max([m.max(axis=(0, 2)) for m in moves], axis=0)
    least = np.min([m.min(axis=(0, 2)) for m in moves], axis=0)
    return bool((most - least <= EVEN * np.maximum(most, 1.0)).all())


def _values(state: FloatArray) -> FloatArray:
    """(configurations, values × ranks)."""
    return np.asarray(state.transpose(1, 0, 2).reshape(state.shape[1], -1))


def _even(before: FloatArray, here: FloatArray, after: FloatArray, host: FloatArray) -> bool:
    advance, earlier = after - here, here - before
    near = NEARLY * max(float(advance.max()), 1.0)
    # A clock that nothing moves and that its host has passed holds nobody up.
    used = (advance > near) | (here > host + near)
    advance, earlier, here, after = advance[used], earlier[used], here[used], after[used]
    if not len(advance):
        return True
    if (np.abs(advance - earlier) > near).any():
        return False
    order = np.argsort(advance)
    advance, here, after = advance[order], here[order], after[order]
    # The earliest start of a block on any faster clock, for every clock.
    faster = np.searchsorted(advance, advance + near, side="right")
    earliest = np.append(np.minimum.accumulate(here[::-1])[::-1], np.inf)[faster]
    return bool((after <= earliest).all())
