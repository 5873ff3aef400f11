"""Whole sorts: as many passes as digits, none for what one block sorts."""

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels


def time_us(elements: float, passes: float = 0.0, dtype: str = "int64", gpu: str = "A100") -> float:
    batch = Batch.of("sort", dtype, {"elements": np.array([elements]), "passes": np.array([passes])})
    return float(KernelModels.for_gpu(load_gpu(gpu)).estimate_batch(batch).time_us[0])


def test_a_key_of_eight_bytes_takes_eight_passes() -> None:
    assert time_us(1e7) == time_us(1e7, 8)
    assert time_us(1e7, dtype="fp32") == time_us(1e7, 4, dtype="fp32")


@pytest.mark.parametrize("elements", [5e3, 1e5, 1e8])
def test_every_digit_takes_another_pass(elements: float) -> None:
    times = np.array([time_us(elements, passes) for passes in (1, 2, 3, 4)])
    assert np.diff(times) == pytest.approx(np.diff(times)[0], rel=0.2)
    assert (np.diff(times) > 8).all()


def test_one_block_sorts_a_short_list_in_one_kernel() -> None:
    assert time_us(2000) < 12 < time_us(3000)


def test_more_keys_never_take_less_time() -> None:
    times = [time_us(elements) for elements in np.geomspace(10, 1e9, 60)]
    assert times == sorted(times)
