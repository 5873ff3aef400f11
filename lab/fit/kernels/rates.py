"""Fitting rows that were measured at two clock rates, in runs of neighbouring rows.

Equal shapes of A100's FlashAttention differ by 1.13 in megatron_ops_fp16.parquet: the first half of the rows
ran at a higher clock than the second. Between the two lie few rows, so a fit to all of them misses both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.fit.kernels.boost import Settings, boost
from stepsight.estimate import FloatArray
from stepsight.kernels.learned.trees import ObliviousTrees
from stepsight.score import gmae

ROUNDS = 5
NEIGHBOURS = 25
"""Rows, in the order of the file, whose median says at which rate a row ran."""
CERTAIN = 0.06
"""Residuals further than this from the middle between the rates speak for themselves."""
APART = 0.05
"""Rates closer than this (in logarithms) are taken to be one."""
FEWEST = 0.15
"""Share of the rows below which a rate is a disturbance."""


def at_one_rate(table: FloatArray, target: FloatArray, settings: Settings) -> ObliviousTrees:
    """Trees at the rate around which the rows lie closer; rows in the order they were measured in.

    ``table`` is features × rows, ``target`` the logarithm to fit.
    """
    columns = table.astype(np.float32)
    slow, apart = np.zeros(len(target), dtype=bool), 0.0
    trees = boost(table, target, settings)
    for _ in range(ROUNDS):
        left = target - trees.predict(columns)
        slow = _slow(left, slow)
        if not FEWEST < slow.mean() < 1 - FEWEST:
            return boost(table, target, settings)
        apart = float(np.median(left[slow]) - np.median(left[~slow]))
        trees = boost(table, target - apart * slow, settings)
    if apart < APART:
        return boost(table, target, settings)
    rates = [trees, replace(trees, bias=trees.bias + apart)]
    return min(rates, key=lambda fit: gmae(np.exp(fit.predict(columns) - target), np.ones(len(target))))


def _slow(left: FloatArray, before: np.typing.NDArray[np.bool_]) -> np.typing.NDArray[np.bool_]:
    """Which rows ran at the lower rate, by what a fit leaves of them and of their neighbours."""
    middle = float(np.median(left))
    if before.any() and not before.all():
        middle = float(np.median(left[before]) + np.median(left[~before])) / 2
    reach = NEIGHBOURS // 2
    padded = np.pad(left, reach, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    certain = np.abs(left - middle) > CERTAIN
    return np.asarray(np.where(certain, left > middle, around > middle))
