"""Boosted oblivious trees: fitted efficiencies as plain arrays, evaluated with numpy alone.

Every level of an oblivious tree asks the same question of all rows, so a tree of depth d is
d comparisons and one table look-up: array arithmetic without a branch. That is what lets a
million kernels be timed in seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray

Columns32 = npt.NDArray[np.float32]
Tree = tuple[list[int], npt.NDArray[np.float32]]

CHUNK_ROWS = 32_768
"""Rows evaluated at a time: the columns of one chunk stay in the processor's cache."""
FEW_ROWS = 256
"""Up to here all trees are asked at once: the calls, not the rows, would set the time."""


def as_table(named: Mapping[str, FloatArray], order: Sequence[str]) -> Columns32:
    """Named columns as features × rows, in the order that trees were fitted with."""
    table = np.empty((len(order), len(named[order[0]])), dtype=np.float32)
    for i, key in enumerate(order):
        table[i] = named[key]
    return table


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trees (or the last, odd one) and the sum of their leaves by both indices."""

    first: Tree
    second: Tree | None
    leaf: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ObliviousTrees:
    """Trees of one depth: ``bias`` plus one leaf of every tree.

    ``feature`` and ``threshold`` are trees × depth; ``leaf`` is trees × 2^depth. Level by
    level the answer to "is the feature above the threshold?" is the next bit of the leaf.
    """

    feature: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float32]
    leaf: npt.NDArray[np.float32]
    bias: float
    _paired: list[Pair] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def depth(self) -> int:
        return int(self.feature.shape[1])

    def predict(self, columns: Columns32) -> FloatArray:
        """The sum of all trees for rows given as features × rows."""
        n = columns.shape[1]
        if n <= FEW_ROWS:
            return self._few(columns)
        out = np.empty(n)
        pairs = self._pairs()

        def fill(start: int) -> None:
            stop = min(start + CHUNK_ROWS, n)
            out[start:stop] = self._chunk(np.ascontiguousarray(columns[:, start:stop]), pairs)

        starts = range(0, n, CHUNK_ROWS)
        if len(starts) == 1:
            fill(0)
        else:  # numpy lets go of the interpreter inside each call, so threads share the work
            with ThreadPoolExecutor(min(os.cpu_count() or 1, len(starts))) as pool:
                list(pool.map(fill, starts))
        return out

    def _few(self, columns: Columns32) -> FloatArray:
        above = columns[self.feature] > self.threshold[:, :, None]
        weights = 1 << np.arange(self.depth)[::-1]
        index = np.einsum("tdn,d->tn", above, weights)
        picked = np.take_along_axis(self.leaf, index, axis=1)
        return np.asarray(self.bias + picked.sum(axis=0, dtype=np.float64))

    def _pairs(self) -> list[Pair]:
        """Trees two at a time, with one table of their sums: a look-up costs as much as four questions."""
        if self._paired:
            return self._paired
        trees = [(f.tolist(), t) for f, t in zip(self.feature, self.threshold, strict=True)]
        found = [
            Pair(trees[t], trees[t + 1], (self.leaf[t][:, None] + self.leaf[t + 1][None, :]).ravel())
            for t in range(0, len(trees) - 1, 2)
        ]
        if len(trees) % 2:
            found.append(Pair(trees[-1], None, self.leaf[-1]))
        self._paired.extend(found)
        return found

    def _chunk(self, columns: Columns32, pairs: list[Pair]) -> npt.NDArray[np.float32]:
        n = columns.shape[1]
        above = np.empty(n, dtype=bool)
        first, second = np.empty(n, dtype=np.uint8), np.empty(n, dtype=np.uint8)
        wide, narrow = np.empty(n, dtype=np.uint16), np.empty(n, dtype=np.uint16)
        index = np.empty(n, dtype=np.intp)
        picked = np.empty(n, dtype=np.float32)
        total = np.full(n, self.bias, dtype=np.float32)
        leaves = 1 << self.depth
        for pair in pairs:
            _ask(pair.first, columns, first, above)
            if pair.second is None:
                np.copyto(index, first)
            else:
                _ask(pair.second, columns, second, above)
                np.copyto(wide, first)
                np.copyto(narrow, second)
                np.multiply(wide, leaves, out=wide)
                np.add(wide, narrow, out=wide)
                np.copyto(index, wide)
            pair.leaf.take(index, out=picked, mode="clip")
            total += picked
        return total


def _ask(tree: Tree, columns: Columns32, leaf: npt.NDArray[np.uint8], above: npt.NDArray[np.bool_]) -> None:
    """Which leaf of one tree each row falls into, in 8-bit arithmetic (numpy shifts bytes slowly)."""
    features, thresholds = tree
    np.greater(columns[features[0]], thresholds[0], out=leaf.view(bool))
    bit = above.view(np.uint8)
    for level in range(1, len(features)):
        np.add(leaf, leaf, out=leaf)
        np.greater(columns[features[level]], thresholds[level], out=above)
        np.bitwise_or(leaf, bit, out=leaf)
