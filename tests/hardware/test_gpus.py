"""The catalogue of GPUs: what people ask about is there, with figures that agree with each other."""

import pytest

from stepsight.hardware.gpus import find_gpu, gpu_catalogue, load_gpu, short
from stepsight.kernels.machine import Machine

ASKED_FOR = (
    "RTX 3060", "RTX 3080", "RTX 4090", "RTX 5090", "A10", "A30", "L20", "H20", "A800", "B300", "GB200",
    "GB300", "MI100", "MI210", "MI250", "MI325X", "MI355X", "Tesla P4",
)  # fmt: skip


@pytest.mark.parametrize("name", ASKED_FOR)
def test_gpus_that_people_ask_about_are_in_the_catalogue(name: str) -> None:
    entry = find_gpu(name)
    assert entry is not None
    assert entry.gpu.source
    assert entry.link.source and entry.nic.source


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("5070ti", "RTX-5070Ti"), ("4060-laptop", "RTX-4060-Laptop"),
        ("RTX-4060-Laptop-GPU", "RTX-4060-Laptop"), ("A5000", "RTX-A5000"),
        ("AMD-RX-7900XTX", "RX-7900-XTX"), ("Radeon-RX-7900-XTX", "RX-7900-XTX"), ("7900xtx", "RX-7900-XTX"),
        ("2080Ti", "RTX-2080Ti"), ("RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"),
        ("RTX-PRO-6000-Blackwell-Max-Q", "RTX-PRO-6000-Max-Q"), ("Tesla-V100", "V100-SXM2-16G"),
        ("RTX-PRO-6000-Blackwell-Server", "RTX-PRO-6000"), ("H100-80GB-HBM3", "H100-SXM-80G"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80G"), ("L40", "L40"), ("1080 Ti", "GTX-1080-Ti"),
    ],
)  # fmt: skip
def test_names_are_read_with_and_without_vendor_and_series(name: str, board: str) -> None:
    found = find_gpu(name)
    assert found is not None and found.gpu.name == board


def test_every_board_is_found_by_its_short_name() -> None:
    for name in gpu_catalogue():
        found = find_gpu(short(name))
        assert found is not None and found.gpu.name == name
    assert find_gpu("6000") is None and find_gpu("RTX") is None


def test_an_a800_is_an_a100_with_two_thirds_of_its_nvlink() -> None:
    a800, a100 = find_gpu("NVIDIA A800-SXM4-80GB"), find_gpu("A100-SXM4-80G")
    assert a800 is not None and a100 is not None
    assert a800.link.gbps == 200.0
    assert a100.link.gbps == 300.0
    assert a800.gpu.peak_tflops == a100.gpu.peak_tflops


def test_half_precision_is_never_slower_than_full() -> None:
    for name, entry in gpu_catalogue().items():
        peaks = entry.gpu.peak_tflops
        assert peaks.get("fp16", peaks["fp32"]) >= peaks["fp32"], name


def test_boards_without_stacked_memory_are_known_as_such() -> None:
    gddr = {name: Machine.of(load_gpu(name), "fp32").gddr for name in gpu_catalogue()}
    assert gddr["RTX-5090"] and gddr["RTX-3080-10G"] and gddr["A10"] and gddr["P4"]
    assert not (gddr["A30"] or gddr["A800-SXM4-80G"] or gddr["B300-SXM-288G"] or gddr["H20-SXM-96G"])
