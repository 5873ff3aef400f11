"""Oblivious trees: what the arrays mean, and that fitting finds structure."""

import numpy as np
import pytest

from lab.fit.kernels.boost import Settings, boost
from stepsight.kernels.learned.trees import CHUNK_ROWS, ObliviousTrees


def by_hand(trees: ObliviousTrees, row: np.ndarray) -> float:
    total = trees.bias
    for feature, threshold, leaf in zip(trees.feature, trees.threshold, trees.leaf, strict=True):
        index = 0
        for f, t in zip(feature, threshold, strict=True):
            index = 2 * index + int(row[f] > t)
        total += float(leaf[index])
    return total


def random_trees(count: int = 7, depth: int = 4, features: int = 3) -> ObliviousTrees:
    rng = np.random.default_rng(3)
    return ObliviousTrees(
        rng.integers(0, features, (count, depth)),
        rng.random((count, depth)).astype(np.float32),
        rng.normal(size=(count, 2**depth)).astype(np.float32),
        0.25,
    )


def test_a_row_picks_one_leaf_of_every_tree() -> None:
    trees = random_trees()
    rows = np.random.default_rng(1).random((3, 50)).astype(np.float32)
    expected = [by_hand(trees, rows[:, i]) for i in range(50)]
    assert trees.predict(rows) == pytest.approx(expected, abs=1e-5)


def test_chunks_do_not_show() -> None:
    trees = random_trees()
    rows = np.random.default_rng(1).random((3, CHUNK_ROWS + 5)).astype(np.float32)
    assert trees.predict(rows)[-5:] == pytest.approx(trees.predict(rows[:, -5:]))


def test_a_row_reads_the_same_among_many_as_alone() -> None:
    trees = random_trees(count=40)
    rows = np.random.default_rng(1).random((3, 2000)).astype(np.float32)
    alone = [trees.predict(rows[:, [i]])[0] for i in range(0, 2000, 50)]
    assert trees.predict(rows)[::50] == pytest.approx(alone, rel=1e-12, abs=1e-12)


def test_questions_that_alike_rows_settle_do_not_show() -> None:
    trees = random_trees(count=40)
    narrow = np.random.default_rng(1).uniform(0.4, 0.5, (3, 1000)).astype(np.float32)
    expected = [by_hand(trees, narrow[:, i]) for i in range(0, 1000, 25)]
    assert trees.predict(narrow)[::25] == pytest.approx(expected, abs=1e-12)
    same = np.repeat(narrow[:, :1], 1000, axis=1)
    assert trees.predict(same) == pytest.approx(by_hand(trees, same[:, 0]), abs=1e-12)


def test_a_row_without_a_value_is_above_nothing() -> None:
    trees = random_trees(count=40)
    rows = np.random.default_rng(1).random((3, 1000)).astype(np.float32)
    rows[1, ::7] = np.nan
    expected = [by_hand(trees, rows[:, i]) for i in range(0, 1000, 7)]
    assert trees.predict(rows)[::7] == pytest.approx(expected, abs=1e-12)


def test_no_rows_give_no_times() -> None:
    assert len(random_trees().predict(np.zeros((3, 0), dtype=np.float32))) == 0


def test_boosting_learns_a_function_it_can_express() -> None:
    rng = np.random.default_rng(0)
    columns = rng.random((4, 2000))
    target = np.where(columns[0] > 0.5, 1.0, -1.0) + 0.5 * columns[1]
    trees = boost(columns, target, Settings(trees=120, depth=4))
    fresh = rng.random((4, 500))
    truth = np.where(fresh[0] > 0.5, 1.0, -1.0) + 0.5 * fresh[1]
    assert np.abs(trees.predict(fresh.astype(np.float32)) - truth).mean() < 0.05


def test_the_same_seed_gives_the_same_trees() -> None:
    rng = np.random.default_rng(0)
    columns, target = rng.random((3, 300)), rng.random(300)
    a = boost(columns, target, Settings(trees=10, depth=3))
    b = boost(columns, target, Settings(trees=10, depth=3))
    assert np.array_equal(a.leaf, b.leaf) and np.array_equal(a.threshold, b.threshold)
