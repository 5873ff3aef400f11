"""Readings of operators by provider: which kernels each stands for."""

from pathlib import Path

import pytest

from lab.datasets.liger import rows

HEADER = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,x_name,x_value,y_value_50,"
    "extra_benchmark_config_str,gpu_name\n"
)
CONFIG = '"{""M"": 4096, ""dtype"": ""torch.float32""}"'


def read(tmp_path: Path, *lines: str) -> tuple[list[list[str]], dict[str, int]]:
    (tmp_path / "kernels").mkdir(exist_ok=True)
    (tmp_path / "kernels" / "liger_kernels.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    found, left_out = rows(tmp_path)
    return [[kernel.family for kernel in row.kernels] for row in found], left_out


def line(name: str, provider: str, mode: str, ms: float) -> str:
    return f"{name},{provider},{mode},speed,N,8192,{ms},{CONFIG},NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("mode", "families"),
    [
        ("forward", ["layer_norm"]),
        ("backward", ["layer_norm_backward", "layer_norm_weights"]),
        ("full", ["layer_norm", "layer_norm_backward", "layer_norm_weights"]),
    ],
)
def test_a_norm_of_torch_is_its_kernels(tmp_path: Path, mode: str, families: list[str]) -> None:
    found, left_out = read(tmp_path, line("layer_norm", "huggingface", mode, 0.5))
    assert found == [families] and not left_out


def test_short_readings_and_unknown_operators_are_counted(tmp_path: Path) -> None:
    short, unknown = line("layer_norm", "liger", "full", 0.1), line("fused_moe", "liger", "full", 5.0)
    found, left_out = read(tmp_path, short, unknown)
    assert found == [] and sorted(left_out.values()) == [1, 1]
