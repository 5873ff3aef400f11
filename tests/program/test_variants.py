"""Kinds: what sets a kernel apart follows once from the operator that launches it."""

import pytest

from stepsight.program.job import Kernel
from stepsight.program.variants import Kind, Role, classify


@pytest.mark.parametrize(
    ("given", "plain"),
    [("aten::add_", "add"), ("aten::gelu_backward", "gelu_backward"), ("aten::_to_copy", "cast"),
     ("mul", "mul"), ("aten::add.Tensor", "add"), ("aten::_softmax_backward_data", "softmax"),
     ("triton_per_fused_x", "triton_reduction"), ("triton_poi_fused_x", "triton_pointwise")],
)  # fmt: skip
def test_streaming_kernels_are_told_apart_by_the_plain_operator(given: str, plain: str) -> None:
    assert classify("elementwise", given).variant == plain


@pytest.mark.parametrize(
    ("operator", "kind"),
    [("linear", Kind()), ("bmm", Kind("bmm")), ("dgrad", Kind(role=Role.DGRAD)),
     ("bmm_wgrad", Kind(role=Role.WGRAD))],
)  # fmt: skip
def test_products_have_a_role_and_a_variant(operator: str, kind: Kind) -> None:
    assert Kernel.of("gemm", operator=operator, m=8).kind == kind


@pytest.mark.parametrize(
    ("family", "operator", "variant"),
    [("conv", "depthwise_cudnn", "cudnn"), ("conv", "depthwise", ""),
     ("attention", "aten::_scaled_dot_product_cudnn_attention", "cudnn"),
     ("attention", "attention", "flash2"), ("copy_h2d", "Memcpy_HtoD_pageable", "pageable")],
)  # fmt: skip
def test_libraries_are_variants(family: str, operator: str, variant: str) -> None:
    assert classify(family, operator).variant == variant
