"""Convolutions and batch norms without recorded sizes: the kernels beside them tell."""

from __future__ import annotations

from stepsight.program.job import Kernel
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from tests.trace.making import Made

IMAGE = 32 * 56 * 56 * 64
BLOCK = [128, 1, 1]


def _layer(conv_kernel: str = "cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", depth: int = 1) -> Made:
    """A 3×3 convolution of 64 channels, its norm and activation, then their backward under DDP."""
    made = Made()
    number = {"Sequence number": 7}
    at = 0.0

    def add(op: str, kernel: str, grid: list[int], **args: int) -> None:
        nonlocal at
        made.op(op, at, 40, **args)
        made.launch(at + 5, 5, kernel, at + 12, 20, grid=grid, block=BLOCK)
        at += 50

    relu = [IMAGE // 512, 1, 1]
    add("aten::cudnn_convolution", conv_kernel, [49, 4, depth], **number)
    add("aten::cudnn_batch_norm", "bn_fw_tr_1C11_kernel_NCHW<float>", [64, 1, 1])
    add("aten::relu_", "vectorized_elementwise_kernel<4, clamp>", relu)
    add("aten::threshold_backward", "vectorized_elementwise_kernel<4, threshold>", relu)
    add("aten::cudnn_batch_norm_backward", "bn_bw_1C11_kernel_new<float>", [64, 1, 1])
    add("ConvolutionBackward0", "dgrad_engine<float, 512>", [16, 2, 32], **number)
    add("torch::distributed::reducer::mul_out", "vectorized_elementwise_kernel<4, mul>", [72, 1, 1])
    return made


def _kernel(made: Made, number: int) -> Kernel:
    linked = made.linked()
    launch = linked.launches[number]
    return kernel_of(Facts(linked), launch, launch.gpu[0], "compute")[0]


def test_a_batch_norm_is_as_large_as_the_activation_beside_it():
    for number, family in ((1, "batch_norm"), (4, "batch_norm_backward")):
        k = _kernel(_layer(), number)
        assert (k.family, k.dim("cols"), k.dim("rows")) == (family, 64, IMAGE / 64)


def test_a_convolution_is_pixels_by_channels_by_weights_of_one():
    for number in (0, 5):
        k = _kernel(_layer(), number)
        assert (k.family, k.dim("m"), k.dim("n"), k.dim("k")) == ("gemm", IMAGE / 64, 64, 9 * 64)


def test_winograds_batched_product_takes_a_quarter():
    k = _kernel(_layer("volta_sgemm_64x64_nn", depth=36), 0)
    assert k.dim("k") == 9 * 64 / 4
