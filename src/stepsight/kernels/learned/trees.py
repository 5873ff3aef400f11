"""Boosted oblivious trees: fitted efficiencies as plain arrays, evaluated with numpy alone.

Every level of an oblivious tree asks the same question of all rows, so a tree of depth d is
d comparisons and one table look-up: array arithmetic without a branch. That is what lets a
million kernels be timed in seconds.

Where rows are similar, most questions have one answer for all of them: a column's least and greatest
value settle it. A tree keeps the questions that stay open, and trees with few of them share a look-up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsight.errors import InputError
from stepsight.estimate import FloatArray

Columns32 = npt.NDArray[np.float32]
Question = tuple[int, npt.NDArray[np.float32]]
"""Is this feature above this threshold? (An array without axes: numpy compares with it fastest.)"""

CHUNK_ROWS = 32_768
"""Rows evaluated at a time: what one look-up works on stays in the processor's cache."""
FEW_ROWS = 256
"""Up to here all trees are asked at once: the calls, not the rows, would set the time."""
MOST_QUESTIONS = 12
"""Open questions answered by one look-up: 4,096 sums of leaves, as much as the nearest cache holds."""


def as_table(named: Mapping[str, FloatArray], order: Sequence[str]) -> Columns32:
    """Named columns as features × rows, in the order that trees were fitted with."""
    table = np.empty((len(order), len(named[order[0]])), dtype=np.float32)
    for i, key in enumerate(order):
        table[i] = named[key]
    return table


def beyond(
    named: Mapping[str, FloatArray], keys: Iterable[str], low: Sequence[float], high: Sequence[float]
) -> FloatArray:
    """How far (in e-folds, over these columns) each row lies outside the range that was fitted."""
    total = np.zeros(len(next(iter(named.values()))))
    for key, least, most in zip(keys, low, high, strict=True):
        total += np.maximum(0.0, np.maximum(named[key] - most, least - named[key]))
    return total


@dataclass(frozen=True, slots=True)
class Lookup:
    """Questions that stay open, and the sum of leaves for all their answers.

    The first question's answer is the highest bit of the place in ``leaf``.
    """

    questions: list[Question]
    leaf: FloatArray


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
    _questions: list[list[Question]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def depth(self) -> int:
        return int(self.feature.shape[1])

    def predict(self, columns: Columns32) -> FloatArray:
        """The sum of all trees for rows given as features × rows."""
        n = columns.shape[1]
        if n <= FEW_ROWS:
            return self._few(columns)
        out = np.empty(n)
        for start in range(0, n, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, n)
            out[start:stop] = self._chunk(np.ascontiguousarray(columns[:, start:stop]))
        return out

    def _few(self, columns: Columns32) -> FloatArray:
        above = columns[self.feature] > self.threshold[:, :, None]
        weights = 1 << np.arange(self.depth)[::-1]
        index = np.einsum("tdn,d->tn", above, weights)
        picked = np.take_along_axis(self.leaf, index, axis=1)
        return np.asarray(self.bias + picked.sum(axis=0, dtype=np.float64))

    def _chunk(self, columns: Columns32) -> FloatArray:
        n, rows = columns.shape[1], list(columns)
        decided, small = self._open(columns)
        total = np.full(n, self.bias + decided)
        above, high, low = (np.empty(n, dtype=np.uint8) for _ in range(3))
        wide, narrow = np.empty(n, dtype=np.uint16), np.empty(n, dtype=np.uint16)
        index, picked = np.empty(n, dtype=np.intp), np.empty(n)
        for lookup in _shared(small):
            half = (len(lookup.questions) + 1) // 2
            first, second = lookup.questions[:half], lookup.questions[half:]
            _ask(first, rows, high, above)
            if second:
                _ask(second, rows, low, above)
                np.copyto(wide, high)
                np.copyto(narrow, low)
                np.multiply(wide, 1 << len(second), out=wide)
                np.add(wide, narrow, out=wide)
                np.copyto(index, wide)
            else:
                np.copyto(index, high)
            lookup.leaf.take(index, out=picked, mode="clip")
            total += picked
        return total

    def _open(self, columns: Columns32) -> tuple[float, list[Lookup]]:
        """What the decided trees add up to, and the others with their open questions, fewest first.

        A row without a value (NaN) is above nothing: ``min`` hands it on, ``fmax`` does not.
        """
        least, most = columns.min(axis=1), np.fmax.reduce(columns, axis=1)
        always = least[self.feature] > self.threshold
        stays_open = (most[self.feature] > self.threshold) & ~always
        weights = 1 << np.arange(self.depth)[::-1]
        known = (always * weights).sum(axis=1)
        count = stays_open.sum(axis=1)
        levels = np.argsort(~stays_open, axis=1, kind="stable")  # the open ones first
        every, found = self._all_questions(), []
        for questions in range(1, self.depth + 1):
            trees = np.nonzero(count == questions)[0]
            asked = levels[trees, :questions]
            answers = np.arange(1 << questions)[:, None] >> np.arange(questions)[::-1] & 1
            places = known[trees, None] + weights[asked] @ answers.T
            leaves = self.leaf[trees[:, None], places].astype(np.float64)
            for tree, mine, leaf in zip(trees.tolist(), asked.tolist(), leaves, strict=True):
                found.append(Lookup([every[tree][level] for level in mine], leaf))
        done = count == 0
        return float(self.leaf[done, known[done]].sum(dtype=np.float64)), found

    def _all_questions(self) -> list[list[Question]]:
        """By tree and level."""
        if not self._questions:
            for features, thresholds in zip(self.feature.tolist(), self.threshold, strict=True):
                mine = [(f, np.asarray(t)) for f, t in zip(features, thresholds, strict=True)]
                self._questions.append(mine)
        return self._questions


def _shared(small: Sequence[Lookup]) -> Iterator[Lookup]:
    """Trees put together as long as they ask few enough questions."""
    questions: list[Question] = []
    leaf = np.zeros(1)
    for lookup in small:
        if len(questions) + len(lookup.questions) > MOST_QUESTIONS:
            yield Lookup(questions, leaf)
            questions, leaf = [], np.zeros(1)
        leaf = (lookup.leaf[:, None] + leaf).ravel() if questions else lookup.leaf
        questions = lookup.questions + questions
    if questions:
        yield Lookup(questions, leaf)


def _ask(
    questions: Sequence[Question],
    rows: Sequence[Columns32],
    place: npt.NDArray[np.uint8],
    above: npt.NDArray[np.uint8],
) -> None:
    """The answers as bits of ``place``, in 8-bit arithmetic (numpy shifts bytes slowly)."""
    yes = above.view(bool)
    place.fill(0)
    for feature, threshold in questions:
        np.add(place, place, place)
        np.greater(rows[feature], threshold, yes)
        np.bitwise_or(place, above, place)


FORMAT = 1


def save_trees(path: Path, fitted: Sequence[tuple[Mapping[str, Any], ObliviousTrees]]) -> None:
    """Write records with their trees into one compressed .npz; thresholds go as indices into shared edges."""
    arrays: dict[str, Any] = {}
    for i, (_, trees) in enumerate(fitted):
        edges, index = np.unique(trees.threshold, return_inverse=True)
        arrays[f"{i}_feature"] = trees.feature.astype(np.uint8)
        arrays[f"{i}_edges"] = edges.astype(np.float32)
        arrays[f"{i}_threshold"] = index.reshape(trees.threshold.shape).astype(np.uint16)
        arrays[f"{i}_leaf"] = trees.leaf.astype(np.float16)
    models = [{**record, "bias": trees.bias} for record, trees in fitted]
    text = json.dumps({"format": FORMAT, "models": models}, sort_keys=True)
    arrays["header"] = np.frombuffer(text.encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    draft.replace(path)  # a reader never meets half a file


def load_trees(path: Path) -> list[tuple[dict[str, Any], ObliviousTrees]]:
    """The records of one .npz with their trees."""
    try:
        with np.load(path) as arrays:
            header = json.loads(arrays["header"].tobytes().decode())
            if header["format"] != FORMAT:
                raise InputError(str(path), f"format {header['format']} is not {FORMAT}", "fit it again")
            return [(record, _trees(record, arrays, i)) for i, record in enumerate(header["models"])]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            str(path), f"not a kernel artefact ({error})", "write it with python -m lab fit"
        ) from error


def _trees(record: dict[str, Any], arrays: Any, i: int) -> ObliviousTrees:
    return ObliviousTrees(
        arrays[f"{i}_feature"].astype(np.int64),
        arrays[f"{i}_edges"][arrays[f"{i}_threshold"]],
        arrays[f"{i}_leaf"].astype(np.float32),
        float(record.pop("bias")),
    )
