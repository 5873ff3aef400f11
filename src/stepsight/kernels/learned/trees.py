"""Boosted oblivious trees: fitted efficiencies as plain arrays, evaluated with numpy alone.

Every level of an oblivious tree asks the same question of all rows, so a tree of depth d is
d comparisons and one table look-up: array arithmetic without a branch. That is what lets a
million kernels be timed in seconds.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray

Columns32 = npt.NDArray[np.float32]
Pair = tuple[list[int], npt.NDArray[np.float32], npt.NDArray[np.float32]]

CHUNK_ROWS = 32_768
"""Rows evaluated at a time: the columns of one chunk stay in the processor's cache."""
FEW_ROWS = 256
"""Up to here all trees are asked at once: the calls, not the rows, would set the time."""


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
        """Two trees at a time as one of twice the depth: the look-up costs more than the questions."""
        size = len(self.leaf)
        found: list[Pair] = []
        for t in range(0, size - 1, 2):
            both = self.leaf[t][:, None] + self.leaf[t + 1][None, :]
            questions = np.concatenate([self.feature[t], self.feature[t + 1]]).tolist()
            found.append(
                (questions, np.concatenate([self.threshold[t], self.threshold[t + 1]]), both.ravel())
            )
        if size % 2:
            found.append((self.feature[-1].tolist(), self.threshold[-1], self.leaf[-1]))
        return found

    def _chunk(self, columns: Columns32, pairs: list[Pair]) -> npt.NDArray[np.float32]:
        n = columns.shape[1]
        above = np.empty(n, dtype=bool)
        bit = above.view(np.uint8)
        index = np.empty(n, dtype=np.uint16)
        picked = np.empty(n, dtype=np.float32)
        total = np.full(n, self.bias, dtype=np.float32)
        for feature, threshold, leaf in pairs:
            np.greater(columns[feature[0]], threshold[0], out=above)
            np.copyto(index, bit)
            for level in range(1, len(feature)):
                np.left_shift(index, 1, out=index)
                np.greater(columns[feature[level]], threshold[level], out=above)
                np.bitwise_or(index, bit, out=index)
            leaf.take(index, out=picked, mode="clip")
            total += picked
        return total
