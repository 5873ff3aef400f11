"""Sizes where nothing was recorded: the grid's, made exact by the kernels beside it."""

from __future__ import annotations

from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from stepsight.trace.step.job import rank_program
from tests.trace.making import Made, made_run

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


def test_an_activation_beside_a_gemm_tells_its_width_to_the_element():
    stream = _Stream()
    stream.add("aten::addmm", "volta_sgemm_128x64_tn", [17, 64, 1], [128, 1, 1], **{"Sequence number": 3})
    stream.elementwise(4096 * 2049 // 512)
    k = stream.kernel(0)
    assert (k.dim("m"), k.dim("n")) == (4096, 2049)


def test_a_neighbour_of_another_size_tells_nothing():
    stream = _Stream()
    stream.add("aten::addmm", "volta_sgemm_128x64_tn", [17, 64, 1], [128, 1, 1], **{"Sequence number": 3})
    stream.elementwise(77)
    assert stream.kernel(0).dim("n") == 17 * 128


def test_an_exact_size_reaches_the_other_gemms_of_the_same_operator():
    stream = _Stream()
    number = {"Sequence number": 5}
    backward = "autograd::engine::evaluate_function: BmmBackward0"
    stream.add("aten::bmm", "volta_sgemm_32x128_tn", [3, 1, 4096], [256, 1, 1], **number)
    for _ in range(4):
        stream.elementwise(1)
    stream.add(backward, "volta_sgemm_64x64_nn", [16, 2, 4096], [64, 1, 1], **number)
    stream.elementwise(4096 * 65 * 1024 // 512)
    forward, gradient = stream.kernel(0), stream.kernel(5)
    assert [forward.dim(d) for d in ("batch", "m", "n", "k")] == [4096, 65, 65, 1024]
    assert [gradient.dim(d) for d in ("batch", "m", "n", "k")] == [4096, 65, 1024, 65]


def test_a_concatenation_is_as_large_as_the_pieces_written_before_it():
    stream = _Stream().elementwise(1000).elementwise(1000).elementwise(1000)
    stream.add("aten::cat", "CatArrayBatchedCopy<float>", [160, 3, 1], [512, 1, 1])
    k = stream.kernel(3)
    assert (k.dim("read_bytes"), k.dim("inputs")) == (3 * 1000 * 512 * 4, 3)


def test_a_concatenation_is_as_large_as_the_pieces_read_behind_it():
    stream = _Stream().add("aten::cat", "CatArrayBatchedCopy<float>", [160, 64, 1], [512, 1, 1])
    stream.elementwise(20000).elementwise(20000)
    assert stream.kernel(0).dim("write_bytes") == 2 * 20000 * 512 * 4


def test_a_concatenation_behind_a_collective_reads_what_it_brought():
    stream = _Stream()
    stream.add("fbgemm::lookup", LOOKUP.format("forward"), [1024, 1, 1], [32, 16, 1])
    made, at = stream.made, stream.at
    made.step(0, 0, at + 400)
    made.annotation("nccl:all_to_all", at, 20)
    made.launch(at + 5, 5, "ncclDevKernel_SendRecv(ncclDevComm*)", at + 12, 60, stream=20)
    made.call("cudaStreamWaitEvent", at + 30, 1)
    made.op("aten::cat", at + 32, 20)
    made.launch(at + 35, 5, "CatArrayBatchedCopy<float>", at + 75, 60, stream=48, grid=[2560, 4, 1],
                block=[128, 1, 1])  # fmt: skip
    run = made_run(made)
    ops = [t.op for t in rank_program(run, run.ranks[0], 0).ops]
    sent = 1024 * 16 * 1024 * 4
    assert [op.collective.bytes for op in ops if op.collective] == [sent]
    assert ops[-2].kernels[0].dim("read_bytes") == sent


def test_a_lookup_writes_its_bags_as_wide_as_its_registers_hold():
    stream = _Stream().add("fbgemm::lookup", LOOKUP.format("forward"), [1024, 1, 1], [32, 16, 1])
    stream.add("fbgemm::lookup_backward", LOOKUP.format("backward"), [80, 1, 1], [32, 16, 1])
    size = 1024 * 16 * (4 * 8 * 32) * 4
    assert stream.kernel(0).dim("write_bytes") == size
    assert stream.kernel(1).dim("read_bytes") == size


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
