"""Launch floors: one kernel, or two where k is split."""

import numpy as np
import pytest

from lab.fit.kernels.events import path_reading_us
from lab.fit.kernels.learn import launch_path
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import EventPath
from stepsight.kernels.machine import Machine

MACHINE = Machine("test", "volta", 14.0, 900.0, 80, 6.0)
TRUTH = EventPath(added_us=30.0, floor_us=60.0, second_us=4.0, split_depth=200.0, split_slope=0.0)


def small_products(n: int = 600) -> tuple[Batch, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {key: np.floor(np.exp(rng.uniform(2.0, 6.5, n))) for key in ("m", "n", "k")}
    batch = Batch.of("gemm", "fp32", sizes, "linear")
    readings = path_reading_us(TRUTH, np.full(n, 5.0), batch.dims, MACHINE.sms)
    return batch, readings * np.exp(rng.normal(0, 0.005, n))


def test_the_second_launch_is_found_with_the_depth_it_starts_at() -> None:
    found = launch_path(*small_products(), MACHINE, splits=True)
    assert found.floor_us == pytest.approx(60.0, rel=0.01)
    assert found.second_us == pytest.approx(4.0, rel=0.2)
    assert 120 <= found.split_depth <= 250


def test_batched_products_have_one_floor() -> None:
    assert launch_path(*small_products(), MACHINE, splits=False).second_us == 0.0
