"""A traced operator is lowered like a captured one, and its kernels are matched with what was launched."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from tests.trace.making import Made, sized

STREAM = "vectorized_elementwise_kernel<4, f>"
SMALL = {"grid": [2, 1, 1], "block": [128, 1, 1]}


def observed(
    op: str,
    dims: Any,
    *launched: tuple[str, float] | str,
    types: Any = None,
    scalars: Any = None,
    **args: Any,
) -> list[tuple[Kernel, Observation]]:
    """The kernels of one call; a kernel is a name, or a name and its µs."""
    made = Made()
    extra = {"Concrete Inputs": scalars} if scalars else {}
    made.op(op, 0, 1000, dims, types, **extra)
    at = 20.0
    for i, kernel in enumerate(launched):
        name, length = (kernel, 5.0) if isinstance(kernel, str) else kernel
        made.launch(10 + 10 * i, 5, name, at, length, **args)
        at += length + 2
    return sized(made)


def kernel(op: str, dims: Any, name: str, **how: Any) -> Kernel:
    return observed(op, dims, name, **how)[0][0]


def test_addmm_gives_m_n_k() -> None:
    k = kernel("aten::addmm", [[64], [256, 128], [128, 64], [], []], "volta_sgemm_128x64_tn")
    assert (k.family, k.dim("m"), k.dim("n"), k.dim("k")) == ("gemm", 256, 64, 128)


def test_bmm_keeps_its_batch() -> None:
    k = kernel("aten::bmm", [[8, 4, 5], [8, 5, 6]], "volta_sgemm_128x64_tn")
    assert [k.dim(d) for d in ("batch", "m", "n", "k")] == [8, 4, 6, 5]


@pytest.mark.parametrize("op", ["aten::linear", "aten::matmul"])
def test_a_product_whose_inner_call_was_not_recorded_is_its_outer_one(op: str) -> None:
    weight = [32, 16] if op == "aten::linear" else [16, 32]
    k = kernel(op, [[4, 8, 16], weight], "volta_sgemm_128x64_tn")
    assert (k.dim("m"), k.dim("n"), k.dim("k")) == (32, 32, 16)


def test_fp32_on_tensor_cores_computes_in_tf32() -> None:
    name = "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn"
    assert kernel("aten::mm", [[64, 64], [64, 64]], name).dtype == "tf32"


def test_a_split_k_product_and_its_tail_share_the_products_time() -> None:
    parts = observed(
        "aten::mm", [[8, 4], [4, 16]], ("volta_sgemm_128x64_tn", 75), ("void splitKreduce_kernel<float>", 25)
    )
    assert [(k.family, seen.share) for k, seen in parts] == [("gemm", 0.75), ("gemm", 0.25)]


def test_elementwise_reads_its_inputs_and_writes_the_broadcast() -> None:
    k = kernel("aten::add", [[32, 8], [8], []], STREAM)
    assert (k.dim("elements"), k.dim("read_bytes"), k.dim("write_bytes")) == (256, 4 * 264, 4 * 256)


def test_a_comparison_writes_bytes() -> None:
    assert kernel("aten::lt", [[1024], [1024]], STREAM).dim("write_bytes") == 1024


def test_strides_show_in_the_kernel_that_ran() -> None:
    plain, strided = (
        kernel("aten::copy_", [[64, 32], [64, 32], []], name)
        for name in (STREAM, "elementwise_kernel<128, 4, copy>")
    )
    assert (plain.family, strided.family) == ("copy_d2d", "transpose")
    assert kernel("aten::mul", [[64, 32], [64, 32]], "elementwise_kernel<128, 2, f>").dim("indexed") == 1


@pytest.mark.parametrize(
    ("op", "name", "family"),
    [
        ("aten::_softmax", "softmax_warp_forward<float>", "softmax"),
        ("aten::native_layer_norm", "vectorized_layer_norm_kernel", "layer_norm"),
        ("aten::sum", "reduce_kernel<512, 1>", "reduce"),
        ("aten::native_dropout", "fused_dropout_kernel_vec", "dropout"),
    ],
)
def test_operators_have_their_family(op: str, name: str, family: str) -> None:
    assert kernel(op, [[64, 128]], name).family == family


def test_an_embedding_picks_rows() -> None:
    k = kernel("aten::index_select", [[64, 128], [], [32]], "indexSelectLargeIndex")
    assert (k.family, k.dim("rows"), k.dim("cols")) == ("gather", 32, 128)


def test_a_list_of_tensors_is_an_update() -> None:
    lists = [[[64, 64], [32]], [[64, 64], [32]]]
    k = kernel("aten::_foreach_add_", lists, "multi_tensor_apply_kernel<X>", types=["TensorList"] * 2)
    assert (k.family, k.dim("elements"), k.dim("tensors")) == ("optimizer", 64 * 64 + 32, 2)


@pytest.mark.parametrize(("axes", "rows"), [("[0]", 32), ("[-1]", 8), ("", 1)])
def test_a_reduction_keeps_the_axes_that_its_scalars_leave(axes: str, rows: int) -> None:
    k = kernel("aten::sum", [[8, 32], [], []], "reduce_kernel<512, 1>", scalars=["", axes, "False"])
    assert (k.dim("rows"), k.dim("cols")) == (rows, 256 // rows)


def test_copies_are_known_by_their_bytes() -> None:
    k = kernel("aten::copy_", None, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", bytes=4096)
    assert (k.family, k.dim("bytes")) == ("copy_h2d", 4096)


def test_kernels_of_an_operator_that_was_split_share_its_time() -> None:
    parts = observed("aten::relu", [[1024, 1024]], *[(STREAM, 15.0)] * 4)
    assert [seen.share for _, seen in parts] == [0.25] * 4
    assert {k.dim("elements") for k, _ in parts} == {1024 * 1024}


def test_the_kernels_of_a_convolution_share_its_time() -> None:
    dims = [[64, 64, 56, 56], [64, 64, 3, 3]]
    scalars = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    parts = observed(
        "aten::cudnn_convolution", dims, ("cudnn::nchwToNhwcKernel<float>", 25),
        ("sm80_xmma_fprop_implicit_gemm_tf32", 75), scalars=scalars,
    )  # fmt: skip
    assert [(k.family, seen.share) for k, seen in parts] == [("conv", 0.25), ("conv", 0.75)]
    assert {k.dim("reordered") for k, _ in parts} == {1.0}


def test_both_gradients_of_a_convolution_are_timed_together() -> None:
    dims = [[8, 16, 28, 28], [8, 32, 28, 28], [16, 32, 1, 1]]
    names = ("xmma_dgrad_implicit", "computeOffsetsKernel", "volta_scudnn_wgrad", "wgrad_reduce")
    parts = observed("aten::convolution_backward", dims, *names)
    assert {tuple(one.family for one, _ in k.parts) for k, _ in parts} == {("conv_dgrad", "conv_wgrad")}
    assert sum(seen.share for _, seen in parts) == pytest.approx(1.0)


def test_a_convolutions_stride_shows_in_what_reads_its_result() -> None:
    made = Made()
    made.op("aten::cudnn_convolution", 0, 50, [[32, 512, 28, 28], [1024, 512, 1, 1]])
    made.launch(10, 5, "volta_scudnn_128x128_relu_gemm", 20, 500)
    made.op("aten::cudnn_batch_norm", 60, 20, [[32, 1024, 14, 14], [1024]])
    assert sized(made)[0][0].dim("stride") == 2


def test_a_convolution_of_unknown_stride_keeps_its_measured_time() -> None:
    dims = [[32, 512, 28, 28], [1024, 512, 1, 1]]
    ((k, seen),) = observed("aten::cudnn_convolution", dims, "volta_scudnn_gemm")
    assert k.sizing is Sizing.UNKNOWN and seen.opaque


@pytest.mark.parametrize(
    ("op", "scalars", "side"),
    [
        ("aten::cudnn_convolution", ["", "", "[0, 0]", "[16, 16]", "[1, 1]", "1"], 16),
        ("aten::miopen_convolution", ["", "", "", "[0, 0]", "[8, 8]", "[1, 1]", "1"], 8),
        ("aten::convolution", ["", "", "", "[4, 4]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"], 4),
    ],
)
def test_libraries_take_padding_before_stride(op: str, scalars: list[str], side: int) -> None:
    k = kernel(op, [[4, 3, 224, 224], [64, 3, 16, 16]], "xmma_fprop_implicit_gemm", scalars=scalars)
    assert (k.dim("stride"), k.dim("padding")) == (side, 0)


def test_a_compiled_regions_inputs_are_not_charged_to_each_of_its_kernels() -> None:
    names = ("vectorized_elementwise_kernel<4, add>", "vectorized_elementwise_kernel<4, mul>")
    parts = observed("CompiledFunction", [[1024, 1024]] * 200, *names, **SMALL)
    assert [(k.dim("elements"), k.sizing) for k, _ in parts] == [(1024, Sizing.COUNTED)] * 2


def test_a_fused_triton_kernel_touches_what_it_lists_once() -> None:
    name = "triton_poi_fused_add_0"
    k = kernel(name, [[1024], [1024]], name, types=["c10::BFloat16"] * 2)
    assert k.dim("read_bytes") + k.dim("write_bytes") == 2 * 2 * 1024


def test_a_triton_kernel_touches_no_more_than_the_points_it_iterates_over() -> None:
    name = "triton_poi_fused_slice_0"
    scalars = ["", "", "1024"]
    k = kernel(name, [[4096], [1024], []], name, types=["float", "float", "Scalar"], scalars=scalars)
    assert (k.dim("read_bytes"), k.dim("write_bytes")) == (4096, 4096)


@pytest.mark.parametrize(
    ("op", "dims", "scalars", "expected"),
    [
        ("aten::_scaled_dot_product_flash_attention", [[2, 8, 64, 32]] * 3, ["", "", "", "0.", "True"],
         (2, 8, 64, 32, 1)),
        ("flash_attn::_flash_attn_forward", [[2, 64, 8, 32]] * 3, [], (2, 8, 64, 32, 0)),
        ("FlashAttnVarlenFunc", [[128, 8, 32]] * 3 + [[3]], [], (2, 8, 64, 32, 1)),
    ],
)  # fmt: skip
def test_fused_attention_in_the_layouts_of_its_libraries(
    op: str, dims: Any, scalars: list[str], expected: tuple[int, ...]
) -> None:
    types = ["c10::Half"] * 3 + ["int"] * (len(dims) - 3)
    k = kernel(op, dims, "flash_fwd_kernel", types=types, scalars=scalars)
    assert k.family == "attention"
    assert tuple(k.dim(d) for d in ("batch", "heads", "q", "head_dim", "causal")) == expected


def test_packed_sequences_of_different_length_keep_their_measured_time() -> None:
    dims, types = [[1000, 8, 64]] * 3 + [[128]], ["c10::BFloat16"] * 3 + ["int"]
    scalars = ["", "", "", "", "512", "512"]
    ((k, seen),) = observed(
        "flash_attn_3::_flash_attn_forward", dims, "flash_fwd", types=types, scalars=scalars
    )
    assert k.sizing is Sizing.UNKNOWN and seen.opaque


def test_a_function_of_another_library_keeps_its_measured_time() -> None:
    kind = "MySoftmax", [[4, 8, 128, 128]], "my_softmax_warp_forward<float>"
    ((k, seen),) = observed(*kind)
    assert k.sizing is Sizing.UNKNOWN and seen.opaque


def test_communication_of_other_libraries_keeps_its_time() -> None:
    ((k, seen),) = observed("symm_mem::one_shot_all_reduce", [[1024]], "multimem_all_reduce", **SMALL)
    assert k.sizing is Sizing.UNKNOWN and seen.opaque


@pytest.mark.parametrize("dims", [[[-4, 8], [8]], [[2**60, 8]], [["a"]], [[1.5]], [{}]])
def test_impossible_sizes_count_as_none(dims: Any) -> None:
    k = kernel("aten::add", dims, STREAM, **SMALL)
    assert k.sizing is Sizing.COUNTED or k.dim("elements") <= 8


@pytest.mark.parametrize(
    ("op", "dims", "family", "sizes"),
    [
        ("ScaledUpperTriangMaskedSoftmax", [[32, 128, 128], []], "softmax", (4096, 128)),
        ("ScaledUpperTriangMaskedSoftmaxBackward", [[32, 128, 128]], "softmax_backward", (4096, 128)),
        ("FusedLayerNormAffineFunction", [[16, 4, 256], [256], [256]], "layer_norm", (64, 256)),
        ("FusedLayerNormAffineFunctionBackward", [[16, 4, 256]], "layer_norm_backward", (64, 256)),
    ],
)
def test_fused_functions_of_megatron_and_apex_have_the_sizes_of_their_input(
    op: str, dims: Any, family: str, sizes: tuple[int, int]
) -> None:
    k = kernel(
        op, dims, "void (anonymous namespace)::scaled_fused_kernel<c10::Half>", types=["c10::Half"] * 3
    )
    assert (k.family, k.dim("rows"), k.dim("cols"), k.dtype) == (family, *sizes, "fp16")


def test_a_transposed_convolution_is_the_input_gradient_of_the_one_that_leads_back() -> None:
    dims = [[8, 64, 16, 16], [64, 32, 2, 2], [], [], [], [], []]
    scalars = ["", "", "[0, 0]", "[0, 0]", "[2, 2]", "[1, 1]", "1"]
    k = kernel("aten::cudnn_convolution_transpose", dims, "sm80_xmma_dgrad_implicit_gemm", scalars=scalars)
    assert (k.family, k.dim("c_in"), k.dim("c_out"), k.dim("h"), k.dim("stride")) == (
        "conv_dgrad",
        32,
        64,
        32,
        2,
    )
