"""Turns: every kernel once, alike ones together."""

import numpy as np

from stepsight.kernels.columns import Batch
from stepsight.kernels.turns import turns


def sizes(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {key: np.floor(np.exp(rng.uniform(0, 9, n))) for key in ("m", "n", "k")}


def test_every_kernel_has_one_turn() -> None:
    found = list(turns(sizes(1000), 1000, 100))
    assert all(len(rows) <= 100 for rows in found)
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))


def test_kernels_of_a_turn_are_alike() -> None:
    dims = sizes(4096)
    whole = sum(np.std(np.log(column)) for column in dims.values())
    for rows in turns(dims, 4096, 512):
        assert sum(np.std(np.log(column[rows])) for column in dims.values()) < 0.7 * whole


def test_kernels_that_do_not_differ_are_cut_all_the_same() -> None:
    dims = {key: np.ones(100) for key in ("m", "n", "k")}
    assert sum(map(len, turns(dims, 100, 16))) == 100


def test_kernels_without_known_sizes_take_turns_in_their_order() -> None:
    assert [rows.tolist() for rows in turns({}, 5, 2)] == [[0, 1], [2, 3], [4]]


def test_parts_of_a_batch_keep_their_names() -> None:
    batch = Batch.of("gemm", "fp32", {"m": np.arange(4.0)}, ["a", "b", "a", "c"])
    (rows, part), (_, other) = batch.parts([np.array([1, 3]), np.array([0, 2])])
    assert list(part.names) == ["b", "c"] and rows.tolist() == part.positions.tolist() == [1, 3]
    assert list(other.names) == ["a", "a"]
