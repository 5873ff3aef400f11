"""Which pairs of query and key a fused attention kernel computes: causal masks, windows, tiles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepsight.estimate import FloatArray

Dims = Mapping[str, FloatArray]

ROWS = 128
"""Query rows of a thread block in FlashAttention-2's forward, keys of one in its backward."""
STEP = 64
"""Keys (forward) or queries (backward) that a thread block takes at a time, for heads of 128."""


def visible_pairs(d: Dims) -> FloatArray:
    """Query-key pairs of one head that the mask leaves: what the result needs.

    ``window`` is the most keys a query sees (0: no limit); with a causal mask they lie before it.
    The last query sees the last key, so ``kv - q`` keys lie before the first query.
    """
    q, kv = np.maximum(d["q"], 1.0), np.maximum(d["kv"], 1.0)
    full = q * kv
    causal = np.where(kv >= q, full - q * (q - 1) / 2, kv * (kv + 1) / 2)
    window = np.where(d["window"] > 0, np.minimum(d["window"], kv), kv)
    # The first queries of a causal window still see fewer keys than it is wide.
    ramp = np.maximum(0.0, np.minimum(q, window - (kv - q)))
    banded = q * window - ramp * (ramp - 1) / 2
    masked = np.where(d["causal"] > 0, np.minimum(causal, banded), np.minimum(full, q * window))
    return np.asarray(np.maximum(masked, 1.0))


def tiled_pairs(d: Dims) -> FloatArray:
    """Pairs of one head that whole tiles compute: the mask's edge costs the tiles it crosses."""
    q = np.ceil(np.maximum(d["q"], 1.0) / ROWS) * ROWS
    kv = np.ceil(np.maximum(d["kv"], 1.0) / STEP) * STEP
    full = q * kv
    before = np.maximum(kv - q, 0.0)
    causal = np.minimum(full, q * before + (q * q + q * ROWS) / 2)
    masked = np.where(d["causal"] > 0, causal, full)
    banded = np.where(d["window"] > 0, q * (d["window"] + ROWS), np.inf)
    return np.asarray(np.minimum(masked, banded))


def thread_blocks(d: Dims, along: str) -> FloatArray:
    """Thread blocks of all heads; ``along`` is the axis they share out: q forward, kv backward."""
    return np.asarray(np.ceil(np.maximum(d[along], 1.0) / ROWS) * d["batch"] * d["heads"])
