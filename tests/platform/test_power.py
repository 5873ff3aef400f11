"""Clock and energy: what a board's power limit leaves of its boost clock."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.platform.load import load_platform
from stepsight.program.job import Kernel
from stepsight.simulate.sustained import Sustained, sustained, sustained_alone

GEMM = Kernel.of("gemm", "bf16", batch=1, m=8192, n=8192, k=8192)
COPY = Kernel.of("elementwise", "bf16", elements=2**28)


def alone(gpu: str, kernel: Kernel = GEMM, *overrides: str) -> Sustained:
    return sustained([kernel], np.ones(1), load_platform(f"1x{gpu}", overrides))


def slowdown(found: Sustained) -> float:
    return float(found.estimates.time_us[0] / found.draws.time_us[0])


def test_a_chip_with_a_seventh_of_the_tensor_peak_keeps_its_clock() -> None:
    assert alone("H20").clock == 1.0


def test_a_lower_board_limit_lowers_the_clock() -> None:
    clocks = [alone("H100-SXM", GEMM, f"gpu.power_w={w}").clock for w in (700, 500, 350)]
    assert 1.0 > clocks[0] > clocks[1] > clocks[2]
    assert alone("H100-PCIE").clock < alone("H100-SXM").clock


def test_memory_bound_kernels_keep_their_time() -> None:
    assert slowdown(alone("H100-SXM", COPY, "gpu.power_w=350")) == pytest.approx(1.0, abs=0.005)


def test_a_kernel_loses_time_as_far_as_arithmetic_bounds_it() -> None:
    short = Kernel.of("gemm", "bf16", batch=1, m=8192, n=8192, k=64)
    together = sustained([GEMM, short], np.array([1.0, 1.0]), load_platform("1xH100-SXM"))
    slower = together.estimates.time_us / together.draws.time_us
    share = together.draws.clock_bound_us / together.draws.time_us
    assert slower == pytest.approx(1 + share * (1 / together.clock - 1))
    assert slower[1] < slower[0]


def test_average_power_meets_the_limit() -> None:
    power = load_platform("1xH100-SXM").conditions.power
    found = alone("H100-SXM")
    assert power is not None
    assert power.watts(found.draws.total(np.ones(1)), found.clock) == pytest.approx(700, rel=1e-3)


def test_a_gpu_whose_power_nobody_states_keeps_its_clock() -> None:
    mine = load_platform("1xH100-SXM", ["gpu.name=mine", "gpu.architecture=unknown"])
    assert mine.conditions.power is not None


PUBLISHED = {
    "H100-SXM": (600, 720), "A100-SXM4-80G": (240, 270), "A100-PCIE-80G": (225, 260),
    "B200-SXM-180G": (1400, 1750),
}  # fmt: skip
"""TFLOP/s of one large bf16 GEMM run again and again (sources: power.toml)."""


@pytest.mark.parametrize("gpu", PUBLISHED)
def test_one_gemm_by_itself_runs_as_fast_as_people_measure(gpu: str) -> None:
    at_boost = float(alone(gpu).draws.time_us[0])
    took_us = sustained_alone(GEMM, at_boost, load_gpu(gpu))[0]
    low, high = PUBLISHED[gpu]
    assert low < 2 * 8192**3 / took_us / 1e6 < high
    assert at_boost <= took_us <= float(alone(gpu).estimates.time_us[0])


def test_a_limit_that_the_tables_hold_is_not_counted_again() -> None:
    board = load_platform("1xL40S")
    tabled = float(board.kernels.estimate([GEMM]).time_us[0])
    assert float(alone("L40S").estimates.time_us[0]) == pytest.approx(tabled, rel=0.01)
    assert sustained_alone(GEMM, tabled, board.spec.gpu)[0] == pytest.approx(tabled, rel=0.01)
    at = {w: float(alone("L40S", GEMM, f"gpu.power_w={w}").estimates.time_us[0]) for w in (250, 350, 500)}
    assert at[250] > 1.1 * at[350] > 1.2 * at[500]


def test_a_step_that_draws_less_than_the_tables_gemms_keeps_more_of_the_clock() -> None:
    quiet = Kernel.of("elementwise", "bf16", elements=1e8, read_bytes=2e8, write_bytes=2e8)
    mixed = sustained([GEMM, quiet], np.array([1.0, 20.0]), load_platform("1xL40S"))
    assert mixed.clock > alone("L40S").clock + 0.05
    assert float(mixed.estimates.time_us[0]) < 0.95 * float(alone("L40S").estimates.time_us[0])
