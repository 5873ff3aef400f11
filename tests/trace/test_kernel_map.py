"""Launched kernels become families with sizes."""

from __future__ import annotations

import pytest

from lab.score.traces.operator_kernels import check_operators
from stepsight.program.job import Kernel
from stepsight.program.observation import Observation
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of, short_name
from tests.trace.making import Made


def _kernel(op: str, kernel: str, dims=None, types=None, **args) -> Kernel:
    made = Made()
    made.op(op, 0, 100, dims, types)
    made.launch(10, 5, kernel, 20, 5, **args)
    linked = made.linked()
    launch = linked.launches[0]
    return kernel_of(Facts(linked), launch, launch.gpu[0], "compute")[0]


def test_addmm_gives_m_n_k():
    k = _kernel("aten::addmm", "volta_sgemm_128x64_tn", [[64], [256, 128], [128, 64], [], []])
    assert k.family == "gemm"
    assert (k.dim("m"), k.dim("n"), k.dim("k")) == (256, 64, 128)


def test_bmm_keeps_its_batch():
    k = _kernel("aten::bmm", "volta_sgemm_128x64_tn", [[8, 4, 5], [8, 5, 6]])
    assert (k.dim("batch"), k.dim("m"), k.dim("n"), k.dim("k")) == (8, 4, 6, 5)


def test_fp32_on_tensor_cores_computes_in_tf32():
    k = _kernel("aten::mm", "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn", [[64, 64], [64, 64]])
    assert k.dtype == "tf32"


def test_a_split_k_tail_is_a_pass_over_the_result():
    k = _kernel("aten::mm", "void splitKreduce_kernel<float>", [[8, 4], [4, 16]])
    assert (k.family, k.dim("elements")) == ("elementwise", 128)


def test_elementwise_reads_its_inputs_and_writes_the_broadcast():
    k = _kernel("aten::add", "vectorized_elementwise_kernel<4, add>", [[32, 8], [8], []])
    assert (k.dim("elements"), k.dim("read_bytes"), k.dim("write_bytes")) == (256, 4 * 264, 4 * 256)


@pytest.mark.parametrize(
    ("op", "kernel", "family"),
    [
        ("aten::_softmax", "softmax_warp_forward<float>", "softmax"),
        ("aten::native_layer_norm", "vectorized_layer_norm_kernel", "layer_norm"),
        ("aten::sum", "reduce_kernel<512, 1>", "reduce"),
        ("aten::_foreach_add_", "multi_tensor_apply_kernel<TensorListMetadata<2>>", "optimizer"),
        ("aten::embedding", "indexSelectLargeIndex", "gather"),
        ("aten::native_dropout", "fused_dropout_kernel_vec", "dropout"),
    ],
)
def test_operators_have_their_family(op, kernel, family):
    assert _kernel(op, kernel, [[64, 128], [32]], ["float", "long int"]).family == family


def test_copies_are_known_by_their_bytes():
    k = _kernel("aten::copy_", "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", bytes=4096)
    assert (k.family, k.dim("bytes")) == ("copy_h2d", 4096)


def test_a_concatenation_takes_its_size_from_the_operator_around_it():
    made = Made()
    made.op("SplitWithSizesBackward0", 0, 100, [[64, 100], [64, 28]])
    made.op("aten::cat", 5, 80, [[], []])
    made.launch(10, 5, "CatArrayBatchedCopy<float>", 20, 5, grid=[216, 2, 1], block=[512, 1, 1])
    linked = made.linked()
    k = kernel_of(Facts(linked), linked.launches[0], linked.launches[0].gpu[0], "compute")[0]
    assert (k.family, k.dim("read_bytes"), k.dim("inputs")) == ("concat", 4 * 64 * 128, 2)


def test_kernels_of_an_operator_that_was_split_share_its_size():
    made = Made()
    made.op("aten::relu", 0, 100, [[1024, 1024]])
    for i in range(4):
        made.launch(10 + 20 * i, 5, "vectorized_elementwise_kernel<4, relu>", 20 + 20 * i, 15)
    linked = made.linked()
    sizes = [kernel_of(Facts(linked), x, x.gpu[0], "compute")[0].dim("elements") for x in linked.launches]
    assert sizes == [1024 * 1024 / 4] * 4


def _kernels(op: str, dims, launched) -> list[Kernel]:
    return [kernel for kernel, _ in _observed(op, dims, launched)]


def _observed(op: str, dims, launched) -> list[tuple[Kernel, Observation]]:
    made = Made()
    made.op(op, 0, 1000, dims)
    at = 20.0
    for i, (name, length, args) in enumerate(launched):
        made.launch(10 + 10 * i, 5, name, at, length, **args)
        at += length + 2
    facts = Facts(made.linked())
    return [kernel_of(facts, x, x.gpu[0], "compute") for x in facts.linked.launches]


def test_the_kernels_of_a_convolution_share_its_time():
    dims = [[64, 64, 56, 56], [64, 64, 3, 3]]
    launched = [("cudnn::nchwToNhwcKernel<float>", 25, {}), ("xmma_fprop_implicit_gemm", 75, {})]
    parts = _observed("aten::cudnn_convolution", dims, launched)
    assert [(k.family, seen.share) for k, seen in parts] == [("conv", 0.25), ("conv", 0.75)]


def test_tensor_cores_get_their_layout_by_kernels_of_their_own():
    dims = [[64, 64, 56, 56], [128, 64, 3, 3]]
    wide = {"grid": [100_000, 1, 1], "block": [256, 1, 1]}
    launched = [
        ("cudnn::nchwToNhwcKernel<half>", 25, wide), ("sm80_xmma_fprop_tf32f32", 75, {}),
        ("cudnn::nhwcToNchwKernel<half>", 50, wide),
    ]  # fmt: skip
    (there, _), (work, seen), (back, _) = _observed("aten::cudnn_convolution", dims, launched)
    assert (work.family, work.dtype, seen.share) == ("conv", "tf32", 1.0)
    assert there.dim("elements") == 64 * 64 * 56 * 56
    assert back.dim("elements") == 64 * 128 * 56 * 56


def test_a_convolution_s_backward_is_one_call_for_the_image_and_one_for_the_weights():
    dims = [[8, 16, 28, 28], [8, 32, 28, 28], [16, 32, 1, 1]]
    names = ("xmma_dgrad_implicit", "computeOffsetsKernel", "volta_scudnn_wgrad", "wgrad_reduce")
    parts = _observed("aten::convolution_backward", dims, [(name, 10, {}) for name in names])
    assert [k.family for k, _ in parts] == ["conv_dgrad", "conv_wgrad", "conv_wgrad", "conv_wgrad"]
    assert sum(seen.share for _, seen in parts) == pytest.approx(2.0)


def test_what_is_added_up_for_the_weights_was_made_by_the_kernel_before():
    dims = [[8, 16, 28, 28], [8, 32, 28, 28], [16, 32, 1, 1]]
    names = ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_tn", "cudnn::cnn::reduce_wgrad_nchw_helper<float>")
    parts = _kernels("aten::convolution_backward", dims, [(name, 10, {}) for name in names])
    assert [p.family for p in parts] == ["conv_dgrad", "conv_wgrad", "conv_wgrad"]


def test_the_plain_engine_adds_to_an_image_that_was_cleared():
    dims = [[8, 64, 14, 14], [8, 32, 28, 28], [64, 32, 1, 1]]
    launched = [
        ("cudnn::ops::scalePackedTensor_kernel<float>", 10, {}),
        ("cudnn::detail::dgrad_engine<float, 512, 6, 5>", 90, {}),
        ("wgrad_alg0_engine<float>", 80, {}),
    ]
    (clear, _), (engine, seen), _ = _observed("aten::convolution_backward", dims, launched)
    assert (clear.family, clear.dim("bytes")) == ("fill", 4 * 8 * 32 * 28 * 28)
    assert (engine.family, seen.share) == ("conv_dgrad", 1.0)
    assert engine.operator.endswith("(dgrad_engine)")


def test_a_convolution_s_stride_shows_in_what_reads_its_result():
    made = Made()
    made.op("aten::cudnn_convolution", 0, 50, [[32, 512, 28, 28], [1024, 512, 1, 1]])
    made.launch(10, 5, "volta_scudnn_128x128_relu", 20, 500)
    made.op("aten::cudnn_batch_norm", 60, 20, [[32, 1024, 14, 14], [1024]])
    facts = Facts(made.linked())
    launch = facts.linked.launches[0]
    assert kernel_of(facts, launch, launch.gpu[0], "compute")[0].dim("stride") == 2


@pytest.mark.parametrize(
    ("op", "scalars", "stride", "padding"),
    [
        ("aten::cudnn_convolution", ["", "", "[0, 0]", "[16, 16]", "[1, 1]", "1"], 16, 0),
        ("aten::miopen_convolution", ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"], 2, 3),
        ("aten::convolution", ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"], 2, 3),
        ("aten::cudnn_convolution_relu", ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"], 2, 1),
    ],
)
def test_libraries_take_padding_before_stride(op, scalars, stride, padding):
    made = Made()
    made.op(op, 0, 50, [[4, 3, 224, 224], [64, 3, 16, 16]], **{"Concrete Inputs": scalars})
    made.launch(10, 5, "xmma_fprop_implicit_gemm", 20, 500)
    facts = Facts(made.linked())
    kernel = kernel_of(facts, facts.linked.launches[0], facts.linked.launches[0].gpu[0], "compute")[0]
    assert (kernel.dim("stride"), kernel.dim("padding")) == (stride, padding)


def test_the_helpers_of_a_call_are_sized_by_their_own_grids():
    dims = [[4096, 1024], [4096]]
    small = {"grid": [2, 1, 1], "block": [128, 1, 1]}
    parts = _kernels(
        "aten::embedding_dense_backward", dims,
        [("krn_partials_per_segment", 3, small), ("compute_grad_weight", 90, small)],
    )  # fmt: skip
    assert [p.family for p in parts] == ["elementwise", "scatter"]
    assert parts[0].dim("elements") == 256


def test_a_compiled_region_s_inputs_are_not_charged_to_each_of_its_kernels():
    dims = [[1024, 1024]] * 200
    small = {"grid": [2, 1, 1], "block": [128, 1, 1]}
    names = ("vectorized_elementwise_kernel<4, add>", "vectorized_elementwise_kernel<4, mul>")
    parts = _kernels("CompiledFunction", dims, [(name, 3, small) for name in names])
    assert [p.dim("elements") for p in parts] == [1024, 1024]


def test_pooled_embeddings_are_put_in_order_once():
    k = _kernel("fbgemm::permute_pooled_embs", "permute_pooled_embs_kernel<float>", [[64, 1000], [9]])
    assert (k.dim("read_bytes"), k.dim("write_bytes")) == (256000, 256000)


def test_a_gemm_whose_kernel_loads_single_elements_is_unaligned():
    name = "cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align{}"
    dims = [[1024, 1705], [1705, 512]]
    assert _kernel("aten::mm", name.format(1), dims).operator.endswith("unaligned")
    assert _kernel("aten::mm", name.format(4), dims).operator == "mm"


def test_a_fused_triton_kernel_streams_what_it_lists():
    k = _kernel("triton_poi_fused_add_0", "triton_poi_fused_add_0", [[1024], [1024]], ["c10::BFloat16"] * 2)
    assert k.dim("read_bytes") + k.dim("write_bytes") == 2 * 2 * 1024


def test_without_shapes_the_grid_tells_the_elements():
    k = _kernel("aten::mul", "vectorized_elementwise_kernel<4, mul>", grid=[10, 1, 1], block=[128, 1, 1])
    assert k.dim("elements") == 10 * 128 * 4


def test_a_lookup_takes_its_tables_from_the_call():
    dims = [[0], [640000], [0], [0, 0], [3], [3], [4], [], [], [4], [], [1792], [385]]
    scalars = ["Scalar", "Scalar", "long int", "Scalar", "long int", "long int"]
    types = ["float", "float", "float", "float", "int", "long int", "int", *scalars]
    k = _kernel("fbgemm::split_embedding_codegen_lookup_adagrad_function",
                "void split_embedding_codegen_forward_unweighted_kernel<float>", dims, types)  # fmt: skip
    assert k.family == "embedding"
    assert len(k.lookup.tables) == 3
    assert k.lookup.tables[0].batch == 128
    assert k.lookup.tables[0].pooling == pytest.approx(1792 / 384)


def test_names_lose_their_template_arguments():
    assert short_name("void at::native::(anonymous namespace)::f<4, float>(int)") == "at::native::f"


def test_calls_that_launch_what_the_builders_emit_agree():
    made = Made()
    made.op("aten::mm", 0, 50, [[8, 8], [8, 8]])
    made.launch(10, 5, "volta_sgemm_128x64_tn", 20, 5)
    made.op("aten::mul", 60, 50, [[8]])
    made.launch(70, 5, "vectorized_elementwise_kernel<4, a>", 80, 5)
    made.launch(76, 5, "vectorized_elementwise_kernel<4, b>", 90, 5)
    agreement = check_operators(Facts(made.linked()))
    assert (agreement.agreed, agreement.checked) == (1, 2)
    assert agreement.others[("aten::mul", ("elementwise", "elementwise"))] == 1
