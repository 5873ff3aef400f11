"""Sizes where nothing was recorded: the grid's, made exact by the kernels beside it."""

from __future__ import annotations

from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from tests.trace.making import Made

LOOKUP = "void split_embedding_codegen_{}_kernel<float, float, float, false, long, 8ul, 32ul>(int)"


class _Stream:
    """Kernels one behind the other on a stream, each under an operator of its own."""

    def __init__(self) -> None:
        self.made, self.at = Made(world=4), 10.0

    def add(self, op: str, kernel: str, grid: list[int], block: list[int], **args: int) -> _Stream:
        self.made.op(op, self.at, 40, **args)
        self.made.launch(self.at + 5, 5, kernel, self.at + 12, 20, grid=grid, block=block)
        self.at += 50
        return self

    def elementwise(self, blocks: int) -> _Stream:
        return self.add("aten::relu", "vectorized_elementwise_kernel<4, f>", [blocks, 1, 1], [128, 1, 1])

    def kernel(self, number: int) -> Kernel:
        return self.observed(number)[0]

    def observed(self, number: int) -> tuple[Kernel, Observation]:
        linked = self.made.linked()
        launch = linked.launches[number]
        return kernel_of(Facts(linked), launch, launch.gpu[0], "compute")


def test_without_a_grid_nothing_is_counted():
    stream = _Stream().add("aten::relu", "vectorized_elementwise_kernel<4, f>", [], [])
    assert stream.kernel(0).sizing is Sizing.UNKNOWN
    assert stream.observed(0)[1].opaque


def test_a_lookup_writes_its_bags_as_wide_as_its_registers_hold():
    stream = _Stream().add("fbgemm::lookup", LOOKUP.format("forward"), [1024, 1, 1], [32, 16, 1])
    size = 1024 * 16 * (4 * 8 * 32) * 4
    assert stream.kernel(0).dim("write_bytes") == size


def test_an_accumulating_index_put_takes_a_warp_an_index():
    stream = _Stream().add("aten::index_put", "indexing_backward_kernel<float>", [520, 1, 8], [32, 4, 1])
    k = stream.kernel(0)
    assert (k.family, k.operator, k.dim("rows")) == ("scatter", "index_put", 520 * 4 * 8)


def test_a_cast_is_named_by_its_result():
    name = "unrolled_elementwise_kernel<direct_copy_kernel_cuda::{lambda(c10::Half)#1}, LoadWithCast<1>>"
    k = _Stream().add("aten::copy_", name, [100, 1, 1], [128, 1, 1]).kernel(0)
    assert (k.dim("read_bytes"), k.dim("write_bytes")) == (4 * 51200, 2 * 51200)


def test_few_threads_that_run_long_loop_over_work_that_nothing_tells():
    made = Made()
    for at, length in ((0.0, 8.0), (200.0, 4000.0)):
        made.op("Custom", at, 40)
        made.launch(at + 5, 5, "persistent_dispatch", at + 12, length, grid=[132, 1, 1], block=[256, 1, 1])
    facts = Facts(made.linked())
    short, long = (kernel_of(facts, x, x.gpu[0], "compute")[1] for x in facts.linked.launches)
    assert (short.opaque, long.opaque) == (False, True)


def test_a_products_grid_counts_its_result_and_not_what_it_sums_over():
    stream = _Stream().add("aten::mm", "volta_sgemm_128x64_tn", [2, 4, 1], [128, 1, 1])
    product, seen = stream.observed(0)
    assert (product.dim("m"), product.dim("n"), product.sizing) == (256, 256, Sizing.UNKNOWN)
    assert seen.opaque


def test_a_concatenations_capped_grid_hides_its_size():
    stream = _Stream().add("aten::cat", "CatArrayBatchedCopy<float>", [320, 4, 1], [512, 1, 1])
    assert stream.kernel(0).sizing is Sizing.UNKNOWN
