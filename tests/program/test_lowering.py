"""Library calls become the kernels that torch launches for them."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel


def tensor(*shape: int, dtype: str = "fp16") -> TensorFact:
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i], step = step, step * shape[i]
    return TensorFact(shape, dtype, tuple(strides))


def lowered(name: str, *inputs: TensorFact, made: TensorFact, **arguments: Any) -> Kernel:
    (kernel,) = lower(AtenCall(name, inputs, (made,), arguments), Precision()).kernels
    return kernel


def test_a_batch_norm_with_given_statistics_is_one_pass() -> None:
    x = tensor(8, 16, 4, 4)
    trained = lowered("native_batch_norm", x, made=x, training=True)
    given = lowered("native_batch_norm", x, made=x, training=False)
    assert (trained.family, given.family) == ("batch_norm", "elementwise")
    assert given.dim("read_bytes") == x.bytes


@pytest.mark.parametrize(
    ("name", "variant"),
    [("_softmax_backward_data", "softmax"), ("_log_softmax_backward_data", "log_softmax")],
)
def test_gradients_of_softmax_and_of_its_logarithm_differ(name: str, variant: str) -> None:
    x = tensor(8, 1000)
    assert lowered(name, x, x, made=x, dim=-1).kind.variant == variant


def test_a_product_with_few_results_streams_its_operands() -> None:
    long, wide = tensor(1, 1_000_000), tensor(1_000_000, 2)
    assert lowered("mm", long, wide, made=tensor(1, 2)).family == "reduce"
    assert lowered("mm", tensor(64, 64), tensor(64, 64), made=tensor(64, 64)).family == "gemm"
