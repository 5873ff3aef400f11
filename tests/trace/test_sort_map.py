"""Kernels of cub's radix sort are sized by their grids, and each is priced as the pass it is."""

from __future__ import annotations

import pytest

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from tests.trace.making import Made

POLICY = "cub::DeviceRadixSortPolicy<{types}>::Policy800"
LONG_INT = POLICY.format(types="long, int, int")
BACKWARD = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"


def name(part: str, policy: str = LONG_INT) -> str:
    return f"void cub::DeviceRadixSort{part}Kernel<{policy}, false, long, int, int>(long const*)"


def sized(
    *kernels: tuple[str, list[int], list[int]], op: str = BACKWARD, dims: list[object], types: list[str]
) -> list[Kernel]:
    """The kernels of one call of an operator."""
    made = Made()
    made.op(op, 0, 500, dims, types)
    for i, (kernel, grid, block) in enumerate(kernels):
        made.launch(10.0 + 10 * i, 5, kernel, 600.0 + 50 * i, 20, grid=grid, block=block)
    linked = made.linked()
    return [kernel_of(Facts(linked), x, x.gpu[0], "compute")[0] for x in linked.launches]


def in_backward(*kernels: tuple[str, list[int], list[int]]) -> list[Kernel]:
    return sized(*kernels, dims=[[8192, 96]], types=["float"])


@pytest.mark.parametrize(
    ("types", "threads", "keys", "moved"),
    [
        ("long, int, int", 384, 3840, 12),  # Ampere: ten keys of eight bytes a thread
        ("long, int, int", 256, 2816, 12),  # Volta: eleven
        ("int, int, int", 384, 8064, 8),
        ("float, cub::NullType, int", 384, 8064, 4),
        ("long, at::cuda::cub::detail::OpaqueType<8>, int", 384, 3840, 16),
    ],
)
def test_the_grid_of_a_pass_counts_tiles_of_its_types(types: str, threads: int, keys: int, moved: int):
    (k,) = in_backward((name("Onesweep", POLICY.format(types=types)), [100, 1, 1], [threads, 1, 1]))
    assert (k.family, k.operator, k.sizing) == ("sort_pass", "radix_pass", Sizing.COUNTED)
    assert k.dim("elements") == 100 * keys
    assert (k.dim("read_bytes"), k.dim("write_bytes")) == (100 * keys * moved, 100 * keys * moved)


def test_the_histogram_reads_the_keys_of_the_pass_behind_it():
    histogram, scan, _ = in_backward(
        (name("Histogram"), [864, 1, 1], [128, 1, 1]),
        (name("ExclusiveSum"), [4, 1, 1], [256, 1, 1]),
        (name("Onesweep"), [4119, 1, 1], [384, 1, 1]),
    )
    assert (histogram.operator, histogram.sizing) == ("radix_histogram", Sizing.COUNTED)
    assert histogram.dim("read_bytes") == 4119 * 3840 * 8
    assert scan.operator == "radix_scan"


def test_a_histogram_alone_counts_at_least_one_tile_a_block():
    (k,) = in_backward((name("Histogram"), [864, 1, 1], [128, 1, 1]))
    assert (k.sizing, k.dim("elements")) == (Sizing.GRID, 864 * 128 * 16)


def test_keys_that_were_recorded_are_taken_as_they_are():
    (k,) = sized(
        (name("Onesweep"), [3, 1, 1], [384, 1, 1]), op="aten::sort", dims=[[8192], [], []],
        types=["long int", "Scalar", "Scalar"],
    )  # fmt: skip
    assert (k.sizing, k.dim("elements")) == (Sizing.STATED, 8192)


def test_one_block_sorts_a_short_list():
    (k,) = in_backward((name("SingleTile"), [1, 1, 1], [256, 1, 1]))
    assert (k.family, k.dim("elements")) == ("sort", 2304)
