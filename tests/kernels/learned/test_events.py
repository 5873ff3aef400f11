"""What CUDA events read around a kernel."""

import numpy as np
import pytest

from stepsight.kernels.learned.model import EventPath

PATH = EventPath(added_us=30.0, floor_us=60.0, second_us=5.0, split_depth=200.0, split_slope=1000.0)


def dims(m: float, n: float, k: float) -> dict[str, np.ndarray]:
    return {key: np.array([value]) for key, value in {"batch": 1.0, "m": m, "n": n, "k": k}.items()}


def test_a_short_kernel_reads_the_hosts_time_and_a_long_one_its_own() -> None:
    assert PATH.reading_us(np.array([2.0, 100.0])).tolist() == [60.0, 130.0]


def test_a_deep_product_with_few_tiles_takes_a_second_launch() -> None:
    deep, shallow = dims(100, 100, 900), dims(100, 100, 100)
    assert PATH.reading_us(np.array([2.0]), PATH.second_launch(deep, 80)) == pytest.approx([65.0])
    assert PATH.reading_us(np.array([2.0]), PATH.second_launch(shallow, 80)) == pytest.approx([60.0])


def test_many_tiles_fill_the_machine_without_splitting() -> None:
    assert PATH.second_launch(dims(1280, 1280, 900), 80) == [0.0]


def test_vector_operators_never_split() -> None:
    assert EventPath(floor_us=30.0).second_launch({"rows": np.array([10.0])}, 80) == 0.0
