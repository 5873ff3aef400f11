"""Ranks of one node that look up at the same time share its memory.

Ranks meet before their lookups (in the exchange), so they start together; a rank with less to
do ends early, and those that go on have the memory for fewer. GPUs have memories of their own:
their platforms state a slowdown of one, and nothing changes.
"""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import ContentionSpec

_PHASES = {"embedding": "lookups_forward", "embedding_backward": "lookups_backward"}


def slowdown_of(contention: ContentionSpec, family: str) -> float:
    """How many times longer a kernel of this family takes while all ranks of the node run one."""
    return float(getattr(contention, _PHASES[family])) if family in _PHASES else 1.0


def side_by_side(together_us: FloatArray, slowdown: float, ranks_per_node: int) -> FloatArray:
    """When each rank is done; the last axis are the ranks, node after node.

    ``together_us`` is what each would take if all ranks of its node were at work all the time. With
    m of n at work a rank is slowed by a share (m - 1) / (n - 1) of that.
    """
    n = min(ranks_per_node, together_us.shape[-1])
    if slowdown <= 1.0 or n <= 1 or together_us.shape[-1] % n:
        return together_us
    alone = (together_us / slowdown).reshape(*together_us.shape[:-1], -1, n)
    order = np.argsort(alone, axis=-1)
    pieces = np.diff(np.take_along_axis(alone, order, axis=-1), axis=-1, prepend=0.0)
    at_work = np.arange(n, 0, -1)
    done = np.cumsum(pieces * (1 + (slowdown - 1) * (at_work - 1) / (n - 1)), axis=-1)
    result = np.empty_like(done)
    np.put_along_axis(result, order, done, axis=-1)
    return result.reshape(together_us.shape)
