"""Which shapes are kept out of every fit. The choice hangs on the shape alone, not on the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray

HELD_OUT_PERCENT = 10


def held_out(dims: Mapping[str, FloatArray], keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """True for the shapes that no fit may see: a tenth of them, the same on every GPU.

    ``keys`` names the sizes that make up a shape: all of them, or ("n", "k") where whole
    pairs are to be left out.
    """
    kept: npt.NDArray[np.bool_] = mixed_sizes(dims, keys) % np.uint64(100) < HELD_OUT_PERCENT
    return kept


def mixed_sizes(dims: Mapping[str, FloatArray], keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    """One number per shape that looks random and is always the same."""
    mixed = np.zeros(len(next(iter(dims.values()))), dtype=np.uint64)
    for key in keys:
        mixed = _mix(mixed ^ dims[key].astype(np.int64).view(np.uint64))
    return mixed


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit stirs every output bit."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
