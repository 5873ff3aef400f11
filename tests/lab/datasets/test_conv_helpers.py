"""Kernels around convolutions in rows of traces: what each of them moves or multiplies."""

import json

from lab.datasets.kernel_tables.trace_rows import kernel_of_row
from stepsight.program.job import Kernel

FORWARD, BACKWARD = "aten::cudnn_convolution", "aten::convolution_backward"


def row(
    op: str, dims: list[list[int]], kernel: str, grid: tuple[int, ...] = (), threads: int = 256
) -> Kernel:
    shapes = json.dumps([*dims, []])
    types = json.dumps(["float"] * len(dims) + [""])
    return kernel_of_row(op, shapes, types, kernel, json.dumps(list(grid)), json.dumps([threads, 1, 1]))


IMAGE, WEIGHT = [32, 128, 28, 28], [128, 128, 3, 3]
TILES = 32 * 7 * 7


def test_a_pointwise_kernel_without_inputs_is_as_large_as_its_grid() -> None:
    made = row("triton_poi_fused_add_0", [], "triton__0d1d2d3de", (16384, 1, 1), threads=128)
    assert (made.family, made.dim("elements")) == ("elementwise", 16384 * 1024)


def test_only_torchs_own_kernels_come_in_parts() -> None:
    dims = [[1024, 256, 64, 64], [1024, 256, 64, 64]]
    made = row("triton_poi_fused_add_8", dims, "triton_poi_fused_add_8", (4194304, 1, 1))
    assert made.dim("elements") == 1024 * 256 * 64 * 64
