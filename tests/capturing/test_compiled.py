"""Compiled functions: element-wise and reduction kernels that feed each other become one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepsight.capturing.fusion import Grouping, Part, part_of, traffic_bytes
from stepsight.capturing.inductor import padded
from stepsight.capturing.request import Assumptions
from stepsight.capturing.step import CapturedStep, decode, encode
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict_captured
from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel
from tests.capturing import scripts_for_tests as scripts
from tests.capturing.test_capture import captured

pytest.importorskip("torch")


def kernels(step: CapturedStep) -> list[Kernel]:
    return [k for op in step.job.programs[0].ops for k in op.kernels]


def products(step: CapturedStep) -> Counter[Kernel]:
    return Counter(k for k in kernels(step) if k.family == "gemm")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[CapturedStep, CapturedStep]:
    """The same script, fused and as captured."""
    folder = tmp_path_factory.mktemp("compiled")
    return captured(folder, scripts.PERCEPTRON), captured(
        folder, scripts.PERCEPTRON, assume=["compile=eager"]
    )


def test_fewer_kernels_move_fewer_bytes_and_products_stay(both: tuple[CapturedStep, CapturedStep]) -> None:
    fused, eager = both
    assert len(kernels(fused)) < len(kernels(eager))
    assert traffic_bytes(kernels(fused)) < traffic_bytes(kernels(eager))
    assert products(fused) == products(eager)
    names = [k.operator for k in kernels(fused)]
    assert "triton_red_fused_native_dropout_add_native_layer_norm_to_copy" in names  # between two products
    assert all(k.size_spread > 0 for k in kernels(fused) if k.operator.startswith("triton_poi"))


def test_the_host_runs_one_operator_for_each_direction(both: tuple[CapturedStep, CapturedStep]) -> None:
    names = Counter(op.name for op in both[0].job.programs[0].ops)
    assert sum(count for name, count in names.items() if name.startswith("Torch-Compiled Region")) == 1
    assert names["CompiledFunctionBackward"] == 1
    assert not names["aten::linear"]


def test_both_are_noted_and_survive_their_file(both: tuple[CapturedStep, CapturedStep]) -> None:
    fused, eager = both
    assert any("kernels fused into" in note for note in fused.notes)
    assert any("captured eagerly" in note for note in eager.notes)
    assert kernels(decode(encode(fused), "step.json")) == kernels(fused)


@pytest.mark.parametrize("name", ["1xH100-SXM", "1xA100-SXM4-40G", "1xV100-SXM2-16G"])
def test_the_prediction_is_not_longer_than_eager(both: tuple[CapturedStep, CapturedStep], name: str) -> None:
    platform = load_platform(name)
    fused, eager = (predict_captured(step, platform) for step in both)
    assert fused.step_time_us <= eager.step_time_us


def test_a_compiled_optimizer_is_one_pass_over_the_parameters(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.PERCEPTRON, arguments=["optimizer"])
    updates = [k for k in kernels(step) if k.family == "optimizer"]
    assert len(updates) == 1
    elements = updates[0].dim("elements")
    assert updates[0].dim("read_bytes") >= 16 * elements  # parameter, gradient and two moments
    assert updates[0].dim("write_bytes") == pytest.approx(12 * elements, rel=0.4)
    assert "aten::linear" in {op.name for op in step.job.programs[0].ops}  # the model was not compiled


def _part(mark: int, name: str, inputs: tuple[int, ...], out: int, shape: tuple[int, ...] = (8, 16)) -> Part:
    facts = [TensorFact((8, 16), "fp32", (16, 1), storage=i) for i in inputs]
    made = TensorFact(shape, "fp32", (16, 1)[: len(shape)], storage=out)
    call = AtenCall(name, tuple(facts), (made,), pointwise=name not in ("sum",))
    part = part_of(mark, call, lower(call, Precision()))
    assert part is not None
    return part


def test_a_kernel_reduces_along_one_axis_only() -> None:
    grouping = Grouping()
    grouping.fuse(_part(1, "mul", (1, 2), 3))
    grouping.fuse(_part(2, "sum", (3,), 4, (8,)))
    grouping.fuse(_part(3, "sum", (3,), 5, (16,)))
    assert [[p.mark for p in g.parts] for g in grouping.groups] == [[1, 2], [3]]


def test_nothing_moves_before_what_it_reads() -> None:
    grouping = Grouping()
    first = _part(1, "mul", (1, 2), 3)
    grouping.fuse(first)
    fact = first.writes[0]
    grouping.stays((fact,), (TensorFact((8, 16), "fp32", (16, 1), storage=4),))  # a product of it
    grouping.fuse(_part(2, "add", (3, 4), 5))  # reads the product's result
    grouping.fuse(_part(3, "exp", (3,), 6))  # does not
    assert [[p.mark for p in g.parts] for g in grouping.groups] == [[1, 3], [2]]


def test_kernels_that_feed_one_call_become_one_at_the_earlier_place() -> None:
    grouping = Grouping()
    first = _part(1, "mul", (1, 2), 3)
    grouping.fuse(first)
    grouping.stays(first.writes, (TensorFact((8, 16), "fp32", (16, 1), storage=9),))
    grouping.fuse(_part(2, "exp", (4,), 5))
    grouping.fuse(_part(3, "add", (3, 5), 6))
    assert [[p.mark for p in g.parts] for g in grouping.groups] == [[1, 2, 3]]
    assert grouping.groups[0].mark == 1


def test_small_inputs_are_computed_where_they_are_needed() -> None:
    grouping = Grouping()
    grouping.fuse(_part(1, "sum", (1,), 2, (8,)))
    grouping.fuse(_part(2, "exp", (3,), 4, (8,)))  # not connected yet
    row = TensorFact((8,), "fp32", (1,), storage=2)
    scale = TensorFact((8,), "fp32", (1,), storage=4)
    made = TensorFact((8,), "fp32", (1,), storage=5)
    call = AtenCall("mul", (row, scale), (made,), pointwise=True)
    part = part_of(3, call, lower(call, Precision()))
    assert part is not None
    grouping.fuse(part)
    grouping.fuse(_part(4, "mul", (1, 5), 6))
    assert [[p.mark for p in g.parts] for g in grouping.groups] == [[1, 2, 3, 4]]


def test_an_unknown_way_to_compile_is_refused() -> None:
    assert Assumptions.read(["compile=eager"]).compile == "eager"
    with pytest.raises(InputError, match="one of fused, eager"):
        Assumptions.read(["compile=fast"])


def test_a_cuda_graph_is_one_launch_and_never_slower(
    tmp_path: Path, both: tuple[CapturedStep, CapturedStep]
) -> None:
    script = scripts.PERCEPTRON.replace("model.compile()", 'model.compile(mode="reduce-overhead")')
    replayed = captured(tmp_path, script)
    fused, eager = both
    assert kernels(replayed) == kernels(fused)
    assert {op.name for op in replayed.job.programs[0].ops if op.cuda_graph} == {
        "Torch-Compiled Region", "CompiledFunctionBackward",
    }  # fmt: skip
    assert not any(op.cuda_graph for op in fused.job.programs[0].ops)
    platform = load_platform("1xH100-SXM")
    times = [predict_captured(step, platform).step_time_us for step in (replayed, fused, eager)]
    assert times == sorted(times)
    again = decode(encode(replayed), "step.json")
    assert [op.cuda_graph for op in again.job.programs[0].ops] == [
        op.cuda_graph for op in replayed.job.programs[0].ops
    ]


def test_large_products_that_are_not_aligned_are_padded() -> None:
    head = Kernel.of("gemm", "bf16", operator="linear", batch=1, m=16384, n=50257, k=768)
    copy, product = padded(head)
    assert dict(product.dims)["n"] == 50264
    assert dict(copy.dims)["read_bytes"] == 2 * 768 * 50264  # the weight; the result is read in place
    weights = Kernel.of("gemm", "bf16", operator="wgrad", batch=1, m=50257, n=768, k=16384)
    assert dict(padded(weights)[0].dims)["elements"] == 50264 * 16384  # its rows are the gradient's
    aligned = Kernel.of("gemm", "bf16", operator="linear", batch=1, m=16383, n=768, k=768)
    small = Kernel.of("gemm", "bf16", operator="linear", batch=1, m=16, n=50257, k=768)
    assert padded(aligned) == (aligned,) and padded(small) == (small,)
