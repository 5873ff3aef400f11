"""Chunks: every kernel once, similar sizes together."""

import numpy as np

from stepsight.kernels.columns import Batch, chunks_by_size
from stepsight.program.variants import Kind, Role


def sizes(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {key: np.floor(np.exp(rng.uniform(0, 9, n))) for key in ("m", "n", "k")}


def test_every_kernel_is_in_one_chunk() -> None:
    found = list(chunks_by_size(sizes(1000), 1000, 100))
    assert all(len(rows) <= 100 for rows in found)
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))


def test_kernels_of_a_chunk_have_similar_sizes() -> None:
    dims = sizes(4096)
    whole = sum(np.std(np.log(column)) for column in dims.values())
    for rows in chunks_by_size(dims, 4096, 512):
        assert sum(np.std(np.log(column[rows])) for column in dims.values()) < 0.7 * whole


def test_kernels_that_do_not_differ_are_cut_all_the_same() -> None:
    dims = {key: np.ones(100) for key in ("m", "n", "k")}
    assert sum(map(len, chunks_by_size(dims, 100, 16))) == 100


def test_kernels_without_known_sizes_keep_their_order() -> None:
    assert [rows.tolist() for rows in chunks_by_size({}, 5, 2)] == [[0, 1], [2, 3], [4]]


def test_parts_of_a_batch_keep_their_kinds() -> None:
    batch = Batch.of("gemm", "fp32", {"m": np.arange(4.0)}, ["mm", "bmm", "mm", "wgrad"])
    (rows, part), (_, other) = batch.parts([np.array([1, 3]), np.array([0, 2])])
    assert list(part.kinds) == [
        Kind("bmm"),
        Kind(role=Role.WGRAD),
    ] and rows.tolist() == part.positions.tolist() == [1, 3]
    assert list(other.kinds) == [Kind()] * 2
