"""Boards: what they keep up of their peak decides how relatives' models answer for them."""

from pathlib import Path

import pytest

from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.transfer import Board, Boards, load_boards, save_boards
from stepsight.kernels.machine import Machine
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel

LARGE = Kernel.of("gemm", "fp32", operator="linear", m=8192, n=4096, k=4096)


def board(gpu: str, share: float, variant: str = "linear") -> Board:
    return Board(gpu, variant, share, 0.1, 10, 0.05, "made up", "2026-11")


def machine(gpu: str) -> Machine:
    return Machine.of(load_gpu(gpu), "fp32")


def test_a_board_keeps_its_measured_share() -> None:
    boards = Boards((board("L4", 0.5),))
    assert boards.share(machine("L4"), "fp32", "linear") == 0.5


def test_batched_products_go_by_single_ones_where_they_were_not_measured() -> None:
    assert Boards((board("L4", 0.5),)).share(machine("L4"), "fp32", "bmm") == 0.5


def test_wide_chips_without_a_measurement_go_by_the_measured_one() -> None:
    boards = Boards((board("H100-SXM-80G", 0.8),))
    assert boards.share(machine("RTX-3090"), "fp32", "linear") == 0.8
    assert boards.share(machine("P100"), "fp32", "linear") == 1.0


def test_half_the_share_takes_twice_as_long_where_arithmetic_bounds() -> None:
    shipped = KernelModels.for_gpu(load_gpu("L4"))
    times = [
        KernelModels(shipped.spec, shipped.shipped, boards=Boards((board("L4", share),)))
        .estimate([LARGE])
        .time_us[0]
        for share in (0.8, 0.4)
    ]
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.1)


def test_another_board_of_a_measured_chip_is_told_apart_and_goes_by_its_share() -> None:
    small, large = (
        KernelModels.for_gpu(load_gpu(g)).estimate([LARGE])[0] for g in ("A100-PCIE-40G", "A100-PCIE-80G")
    )
    assert large.time_us < small.time_us
    assert large.source is Source.LEARNED and "another board" in large.note
    assert large.spread > small.spread


def test_boards_of_a_chip_run_fp32_products_at_their_own_clocks() -> None:
    pcie, sxm = (
        KernelModels.for_gpu(load_gpu(g)).estimate([LARGE]).time_us[0] for g in ("V100-PCIE-32G", "V100-SXM2")
    )
    assert 0.85 * pcie < sxm < 0.95 * pcie  # 14.0 and 15.7 TFLOP/s


def test_boards_survive_the_disk(tmp_path: Path) -> None:
    save_boards(tmp_path / "boards.json", [board("L4", 0.5)])
    assert load_boards(tmp_path / "boards.json").of("L4", "linear") == board("L4", 0.5)
    assert load_boards(tmp_path / "none.json").known == ()
