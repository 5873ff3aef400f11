"""A GPU from its data sheet: what must be there, what is filled in, which unit a rate has."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.errors import InputError
from stepsight.hardware.data_sheet import read_link
from stepsight.hardware.gpus import gpu_entry_from
from stepsight.platform.load import load_platform

SHEET = {
    "name": "mine", "sms": 128, "clock_mhz": 2500, "memory_gb": 24, "memory_gbps": 1008,
    "peak_tflops": {"fp32": 82.6, "bf16": 165.0},
}  # fmt: skip


def test_a_data_sheets_figures_are_enough() -> None:
    gpu = gpu_entry_from(SHEET, "mine.toml").gpu
    assert gpu.l2_gbps > gpu.memory_gbps
    assert gpu.pcie_gbps > 0


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        gpu_entry_from({"name": "mine", "peak_tflops": {}}, "mine.toml")
    for field in ("sms", "clock_mhz", "memory_gb", "memory_gbps", "peak_tflops.fp32"):
        assert field in str(caught.value)


WRONG = [float("nan"), float("inf"), float("-inf"), -1e200, -1, 1e200]
FIELDS = [
    "gpu.sms", "gpu.clock_mhz", "gpu.memory_gb", "gpu.memory_gbps", "gpu.l2_mb", "gpu.l2_gbps",
    "gpu.pcie_gbps", "gpu.power_w",
    "gpu.speed", "gpu.launch_us", "gpu.kernel_gap_us", "gpu.peak_tflops.bf16", "link.gbps",
    "link.latency_us", "nic.gbps", "nic.latency_us", "host.speed", "host.cores",
    "contention.compute_under_comm",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", WRONG)
def test_a_figure_that_no_hardware_has_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field.rsplit(".", 1)[-1]):
        load_platform("2x8xH100-SXM", [f"{field}={value}"])


def test_figures_beyond_their_range_are_refused_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'gpu = "H100-SXM"\ngpus_per_node = 8\n[host]\nspeed = 1e5\n[contention]\nlookups_forward = 1e5\n'
    )
    with pytest.raises(InputError, match=r"host.speed is 100000, .*contention.lookups_forward is 100000"):
        load_platform(file)


def test_a_network_is_given_in_gigabits_or_gigabytes_never_both() -> None:
    assert read_link({"gbit_per_s": 400}, "nic")["gbps"] == 50
    with pytest.raises(InputError, match="gbps is GB/s"):
        read_link({"gbit_per_s": 400, "gbps": 50}, "nic")


def test_a_gpus_own_file_is_a_platform_of_one_or_of_many(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nsms = 128\nclock_mhz = 2500\nmemory_gb = 24\nmemory_gbps = 1008\n'
        '[peak_tflops]\nfp32 = 82.6\nbf16 = 165.0\n[link]\nkind = "pcie"\ngbps = 24\nlatency_us = 8\n'
    )
    assert load_platform(file).spec.ranks == 1
    eight = load_platform(f"8x{file}").spec
    assert (eight.ranks, eight.gpu.name, eight.link.gbps) == (8, "mine", 24)


def test_a_node_larger_than_any_machine_is_said() -> None:
    assert "in one node" in load_platform("128xH100-SXM").notes[0]
    assert load_platform("8xH100-SXM").notes == ()
