"""The many kernels of a fused lookup's backward make up one predicted backward."""

from __future__ import annotations

import pytest

from stepsight.program.job import Kernel
from stepsight.program.observation import Observation
from stepsight.tables.lookup import TableLookup
from tests.trace.making import Made, sized

BACKWARD = "void split_embedding_backward_codegen_adagrad_unweighted_kernel_{}_per_row_1<float>"
KERNELS = (
    "void linearize_index_kernel<long>",
    "void cub::DeviceRadixSortHistogramKernel<long>",
    "void cub::DeviceRadixSortOnesweepKernel<long>",
    "void cub::DeviceRadixSortOnesweepKernel<long>",
    "void cub::DeviceReduceByKeyKernel<long>",
    "split_embedding_backward_codegen_adagrad_unweighted_find_long_segments(int)",
    BACKWARD.format("cta"),
    BACKWARD.format("warp"),
)


FORWARD = "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, {}>(int)"


def _trace(
    *kernels: str, gradient: list[int], fill: bool = False, values: int = 640000, lookups: int = 1792,
    weighted: bool = False, instance: str = "long",
) -> Made:  # fmt: skip
    made = Made()
    dims = [[0], [values], [0], [0, 0], [3], [3], [4], [], [], [4], [], [lookups], [385]]
    scalars = ["Scalar", "Scalar", "long int", "Scalar", "long int", "long int"]
    types = ["float", "float", "float", "float", "int", "long int", "int", *scalars]
    if weighted:
        dims, types = [*dims, [lookups]], [*types, "float"]
    made.op("fbgemm::split_embedding_codegen_lookup_adagrad_function", 0, 50, dims, types)
    made.launch(10, 5, FORWARD.format(instance), 20, 5)
    made.op("torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>", 100, 500, [gradient], ["float"])
    for i, kernel in enumerate(kernels):
        made.launch(110 + 10 * i, 5, kernel, 800 + 10 * i, 5)
    if fill:
        made.op("aten::fill_", 300, 20, [[384], []], ["float", "Scalar"])
        made.launch(305, 5, "void vectorized_elementwise_kernel<4, FillFunctor<float>>", 990, 5)
    return made


def _backward(made: Made) -> list[tuple[Kernel, Observation]]:
    return sized(made)[1:]


def _forward(**sizes: object) -> tuple[TableLookup, ...]:
    lookup = sized(_trace(*KERNELS, **{"gradient": [128, 48], **sizes}))[0][0].lookup
    assert lookup is not None
    return lookup.tables


def test_bags_have_one_length_where_every_sample_has_as_many_lookups() -> None:
    assert {t.bag_spread for t in _forward(lookups=128 * 14)} == {0.0}
    varied = _forward(lookups=128 * 14 + 5)
    assert all(0.3 < t.bag_spread < 0.5 for t in varied)


def test_a_vector_as_long_as_the_indices_holds_their_weights() -> None:
    assert not _forward()[0].weighted
    assert _forward(weighted=True)[0].weighted


def test_the_kernels_of_a_backward_share_the_time_of_one_backward() -> None:
    parts = _backward(_trace(*KERNELS, gradient=[128, 48]))
    assert {kernel.family for kernel, _ in parts} == {"embedding_backward"}
    lookup = parts[0][0].lookup
    assert lookup is not None and lookup.optimizer == "adagrad" and len(lookup.tables) == 3
    assert sum(seen.share for _, seen in parts) == pytest.approx(1.0)


def test_gradients_of_sample_weights_read_the_rows_once_more() -> None:
    extra = "void split_embedding_codegen_grad_indice_weights_kernel<float>"
    (weights, seen), *others = _backward(_trace(extra, *KERNELS, gradient=[128, 48]))
    assert (weights.family, seen.share) == ("embedding", 1.0)
    assert sum(seen.share for _, seen in others) == pytest.approx(1.0)


def test_operators_inside_a_backward_are_timed_by_themselves() -> None:
    *parts, (filled, _) = _backward(_trace(*KERNELS, gradient=[128, 48], fill=True))
    assert (filled.family, filled.lookup) == ("fill", None)
    assert sum(seen.share for _, seen in parts) == pytest.approx(1.0)


def test_a_backward_of_unknown_tables_keeps_its_measured_time() -> None:
    parts = _backward(_trace(*KERNELS, gradient=[64, 999]))
    assert all(kernel.lookup is None and seen.opaque for kernel, seen in parts)
