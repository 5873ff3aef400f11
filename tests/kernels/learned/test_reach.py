"""Long rows on Pascal: out of reach, and nowhere else."""

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.features import look_up_stretch, span_bytes
from stepsight.kernels.machine import Machine

P100 = Machine.of(load_gpu("P100-PCIE-16G"), "fp32")
V100 = Machine.of(load_gpu("V100-PCIE-32G"), "fp32")


def products(m: float, n: float, k: list[float]) -> Batch:
    return Batch.of("gemm", "fp32", {"m": np.array([m]), "n": np.array([n]), "k": np.array(k)}, "linear")


def test_short_rows_are_in_reach() -> None:
    assert look_up_stretch(products(4096, 4096, [1024]), P100) == pytest.approx(1.0)


def test_longer_rows_take_longer_up_to_a_limit() -> None:
    stretch = look_up_stretch(products(4096, 4096, [4096, 16384, 65536, 1e12]), P100)
    assert np.all(np.diff(stretch) > 0) and stretch[-1] == pytest.approx(3.0, rel=1e-2)


def test_other_generations_show_no_end_of_their_reach() -> None:
    assert look_up_stretch(products(8192, 4096, [65536]), V100) == pytest.approx(1.0)


def test_no_more_rows_count_than_tiles_run_at_a_time() -> None:
    dims = {"m": np.array([4e3, 1e6]), "n": np.full(2, 128.0), "k": np.full(2, 8.0)}
    few, many = span_bytes(dims, np.full(2, 4.0), P100)
    assert many == few == (28 * 128 + 128) * 8 * 4
