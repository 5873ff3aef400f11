"""Kernels around convolutions in rows of traces: what each of them moves or multiplies."""

import json

import pytest

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


@pytest.mark.parametrize(("stage", "reads", "writes"), [
    ("ForwardData4x4", 32 * 128 * 28 * 28, 36 * TILES * 128),
    ("ForwardOutput4x4", 36 * TILES * 128, 32 * 128 * 28 * 28),
    ("ForwardFilter4x4", 9 * 128 * 128, 36 * 128 * 128),
])  # fmt: skip
def test_winograds_transforms_move_an_image_or_filter_and_its_tiles(
    stage: str, reads: int, writes: int
) -> None:
    made = row(FORWARD, [IMAGE, WEIGHT], f"void cudnn::winograd_nonfused::winograd{stage}<float, float>")
    assert made.family == "elementwise"
    assert (made.dim("read_bytes"), made.dim("write_bytes")) == (4 * reads, 4 * writes)


def test_winograds_products_are_one_for_each_value_of_a_tile() -> None:
    made = row(FORWARD, [IMAGE, WEIGHT], "volta_sgemm_32x128_nn", (49, 1, 36))
    assert made.family == "gemm"
    assert [made.dim(key) for key in ("batch", "m", "n", "k")] == [36, TILES, 128, 128]


def test_a_copy_between_orders_moves_the_largest_tensor_its_grid_covers() -> None:
    name = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
    image, weight, gradient = [512, 64, 112, 112], [128, 64, 3, 3], [512, 128, 112, 112]
    for grid, moved in (((392, 4, 512), gradient), ((392, 2, 512), image), ((1, 2, 128), weight)):
        made = row(BACKWARD, [gradient, image, weight], name, grid)
        assert (made.family, made.operator) == ("transpose", "layout")
        assert made.dim("elements") == moved[0] * moved[1] * moved[2] * moved[3]


def test_amds_transposes_name_their_tiles() -> None:
    made = row("aten::miopen_convolution", [[512, 64, 56, 56], [64, 64, 3, 3]],
               "batched_transpose_32x32_half", (25690112, 1, 1))  # fmt: skip
    assert made.dim("elements") == 512 * 64 * 56 * 56


@pytest.mark.parametrize(("image", "weight", "kernel", "grid", "stride"), [
    ([512, 3, 224, 224], [64, 3, 7, 7], "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8_wt64x16x4",
     (6422528, 1, 1), 2),
    ([512, 64, 56, 56], [64, 64, 3, 3], "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8",
     (3211264, 1, 1), 1),
    ([32, 256, 56, 56], [512, 256, 1, 1], "volta_scudnn_128x128_relu_interior_nn_v1", (196, 4, 1), 2),
    ([4, 3, 224, 224], [768, 3, 16, 16], "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x",
     (16, 3, 1), 16),
    ([512, 512, 14, 14], [512, 512, 3, 3], "sm90_xmma_fprop_implicit_gemm_tilesize128x256x32_warpgroup",
     (66, 2, 1), 1),
    ([32, 1024, 14, 14], [2048, 1024, 1, 1], "void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3>",
     (25, 16, 1), 2),
    ([32, 1024, 14, 14], [512, 1024, 1, 1], "void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3>",
     (98, 4, 1), 1),
])  # fmt: skip
def test_a_stride_that_was_not_recorded_shows_in_the_grid(
    image: list[int], weight: list[int], kernel: str, grid: tuple[int, ...], stride: int
) -> None:
    made = row(FORWARD, [image, weight], kernel, grid)
    assert (made.family, made.dim("stride")) == ("conv", stride)


def test_gradients_that_were_operators_of_their_own() -> None:
    image = row("aten::cudnn_convolution_backward_input", [[32, 128, 28, 28], [128, 512, 1, 1]],
                "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>")  # fmt: skip
    assert (image.family, image.dim("c_in"), image.dim("c_out")) == ("conv_dgrad", 512, 128)
    weights = row("aten::cudnn_convolution_backward_weight", [[32, 256, 14, 14], [32, 256, 28, 28]],
                  "volta_scudnn_128x128_stridedB_splitK_small_nn_v1", (18, 2, 14))  # fmt: skip
    assert (weights.family, weights.dim("kh"), weights.dim("stride")) == ("conv_wgrad", 3, 2)


def test_what_cannot_be_indexed_with_32_bits_comes_in_parts() -> None:
    made = row("aten::relu", [[512, 64, 224, 224]], "void at::native::vectorized_elementwise_kernel<4>")
    assert made.dim("elements") == 512 * 64 * 224 * 224 / 4


def test_a_maximums_index_counts_as_traffic_of_pooling() -> None:
    made = row(
        "aten::max_pool2d_with_indices", [[32, 64, 112, 112]], "void at::native::max_pool_forward_nchw"
    )
    assert (made.family, made.dim("elements")) == ("pool", 32 * 64 * 56 * 56)
    assert made.dim("write_bytes") == 12 * made.dim("elements")


def test_fused_kernels_read_slices_no_larger_than_what_they_write() -> None:
    dims = [[32768, 2304], [32768, 768], [1, 32768, 6, 128]]
    made = row("triton_poi_fused_add_slice_split_view_4", dims, "triton_poi_fused_add_slice_split_view_4")
    assert made.dim("read_bytes") + made.dim("write_bytes") == 3 * 4 * 32768 * 768


def test_a_pointwise_kernel_without_inputs_is_as_large_as_its_grid() -> None:
    made = row("triton_poi_fused_add_0", [], "triton__0d1d2d3de", (16384, 1, 1), threads=128)
    assert (made.family, made.dim("elements")) == ("elementwise", 16384 * 1024)


def test_a_transposed_convolution_is_the_gradient_of_the_one_that_leads_back() -> None:
    made = row(
        "aten::cudnn_convolution_transpose", [[4, 256, 64, 64], [256, 64, 2, 2]], "sm80_xmma_dgrad_tf32"
    )
    assert [made.dim(key) for key in ("c_in", "c_out", "h", "stride")] == [64, 256, 128, 2]
    assert made.family == "conv_dgrad"


def test_only_torchs_own_kernels_come_in_parts() -> None:
    dims = [[1024, 256, 64, 64], [1024, 256, 64, 64]]
    made = row("triton_poi_fused_add_8", dims, "triton_poi_fused_add_8", (4194304, 1, 1))
    assert made.dim("elements") == 1024 * 256 * 64 * 64
