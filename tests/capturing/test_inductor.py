"""Convolutions of compiled graphs as inductor calls them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from stepsight.capturing.calls import CallRecord
from stepsight.capturing.inductor import as_compiled
from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel


def fact(*shape: int, storage: int = -1) -> TensorFact:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorFact(shape, "fp16", tuple(strides), storage=storage)


def convolution(
    mark: int, c_in: int, c_out: int, *, groups: int = 1, graph: int = 1, node: str = "", bias: bool = False
) -> CallRecord:
    image, weight, out = (
        fact(8, c_in, 28, 28, storage=1),
        fact(c_out, c_in // groups, 3, 3, storage=2),
        fact(8, c_out, 28, 28, storage=3),
    )
    added = fact(c_out, storage=4) if bias else None
    arguments = {"input": image, "weight": weight, "bias": added, "padding": [1, 1], "groups": groups}
    inputs = (image, weight, *([added] if added else []))
    return CallRecord(mark, AtenCall("convolution", inputs, (out,), arguments, node=node), 0, graph)


def kernels(records: list[CallRecord]) -> list[Kernel]:
    return [k for r in as_compiled(records) for k in lower(r.call, Precision()).kernels]


def test_the_bias_is_a_call_that_can_be_fused() -> None:
    bare, added = as_compiled([convolution(7, 64, 64, bias=True)])
    assert (bare.mark, added.mark) == (7, -7)
    assert [k.family for k in lower(bare.call, Precision()).kernels] == ["conv"]
    assert added.call.pointwise
    assert added.call.inputs[0].storage == bare.call.outputs[0].storage != added.call.outputs[0].storage


def test_wide_convolutions_run_in_channels_last() -> None:
    assert [k.dim("reordered") for k in kernels([convolution(1, 128, 256)])] == [0]
    assert [k.dim("reordered") for k in kernels([convolution(1, 128, 256, graph=0)])] == [1]


def test_inference_weighs_groups_and_training_keeps_its_format_with_any() -> None:
    grouped, wide = convolution(1, 128, 128, groups=4), convolution(2, 256, 256)
    assert [k.dim("reordered") for k in kernels([grouped])] == [1]
    assert [k.dim("reordered") for k in kernels([grouped, wide])] == [0, 0]
    backward = CallRecord(3, AtenCall("sum", (fact(8, 256),), (fact(1),), node="SumBackward0"), 0, 1)
    assert [k.dim("reordered") for k in kernels([grouped, wide, backward])[:2]] == [1, 1]


def test_a_graph_with_few_convolutions_keeps_its_format() -> None:
    others = [
        CallRecord(n, AtenCall("relu", (fact(8, 8),), (fact(8, 8),), pointwise=True), 0, 1)
        for n in range(2, 302)
    ]
    assert kernels([convolution(1, 128, 256), *others])[0].dim("reordered") == 1
