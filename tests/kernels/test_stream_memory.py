"""What a board's memory and its cache make of streaming kernels."""

import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.kernels.stream_memory import board_share
from stepsight.program.job import Kernel


def gbps(gpu: str, megabytes: float, name: str = "add") -> float:
    bytes_ = megabytes * 1e6
    kernel = Kernel.of(
        "elementwise", operator=name, elements=bytes_ / 12, read_bytes=bytes_ * 2 / 3, write_bytes=bytes_ / 3
    )
    return bytes_ / 1e3 / KernelModels.for_gpu(load_gpu(gpu)).estimate([kernel])[0].time_us


def test_operands_that_fit_a_fast_cache_move_several_times_faster() -> None:
    assert gbps("L4", 45) > 4 * gbps("L4", 70)
    assert gbps("L4", 70) == pytest.approx(gbps("L4", 700), rel=0.12)


def test_a_gradient_finds_less_in_the_cache_than_a_forward() -> None:
    assert gbps("L4", 45, "mul_backward") < gbps("L4", 45, "mul") / 2


def test_a_cache_hardly_faster_than_the_memory_changes_little() -> None:
    assert gbps("H100", 20) < 1.5 * gbps("H100", 2000)


def test_error_correction_over_the_bus_of_the_data_costs_bandwidth() -> None:
    assert board_share(load_gpu("L4")) == board_share(load_gpu("A10")) < 0.9
    assert board_share(load_gpu("A100")) == board_share(load_gpu("RTX-3090")) == 1.0
