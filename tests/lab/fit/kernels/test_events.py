"""What CUDA events read around a kernel."""

import numpy as np
import pytest

from lab.fit.kernels.events import path_reading_us
from stepsight.kernels.learned.model import EventPath

PATH = EventPath(added_us=30.0, floor_us=60.0, second_us=5.0, split_depth=200.0, split_slope=1000.0)


def dims(m: float, n: float, k: float) -> dict[str, np.ndarray]:
    return {key: np.array([value]) for key, value in {"batch": 1.0, "m": m, "n": n, "k": k}.items()}


def reading_us(kernel_us: float, m: float, n: float, k: float) -> float:
    return float(path_reading_us(PATH, np.array([kernel_us]), dims(m, n, k), 80)[0])


def test_a_short_kernel_reads_the_hosts_time_and_a_long_one_its_own() -> None:
    assert reading_us(2.0, 100, 100, 100) == 60.0 and reading_us(100.0, 100, 100, 100) == 130.0


def test_a_deep_product_with_few_tiles_takes_a_second_launch() -> None:
    assert reading_us(2.0, 100, 100, 900) == pytest.approx(65.0)


def test_many_tiles_fill_the_machine_without_splitting() -> None:
    assert reading_us(2.0, 1280, 1280, 900) == 60.0


def test_vector_operators_never_split() -> None:
    assert path_reading_us(PATH, np.array([2.0]), {"rows": np.array([10.0])}, 80) == [60.0]
