"""Which library runs a convolution, and what is copied for it."""

from typing import Any

import pytest

from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.images import conv_backend, convolution, convolution_backward, is_channels_last


def tensor(*shape: int, dtype: str = "fp32", last: bool = False) -> TensorFact:
    order = (0, 2, 3, 1) if last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for i in reversed(order):
        strides[i], step = step, step * shape[i]
    return TensorFact(shape, dtype, tuple(strides))


def call(x: TensorFact, weight: TensorFact, name: str = "convolution", **more: Any) -> AtenCall:
    out = TensorFact((x.shape[0], weight.shape[0], *x.shape[2:]), x.dtype, x.strides)
    arguments = {"input": x, "weight": weight, "groups": x.shape[1], "stride": [1, 1], **more}
    return AtenCall(name, (x, weight), (out,), arguments)


def backend_name(side: int, *, dtype: str = "fp32", last: bool = False, width: int = 28, **more: Any) -> str:
    x = tensor(64, 96, width, width, dtype=dtype, last=last)
    weight = tensor(96, 1, side, side, dtype=dtype)
    return conv_backend(x, weight, call(x, weight, **more)).name


@pytest.mark.parametrize(("settings", "name"), [
    ({"side": 7}, "depthwise"),
    ({"side": 3}, "depthwise"),
    ({"side": 7, "dtype": "fp16"}, "depthwise"),
    ({"side": 3, "dtype": "fp16"}, "depthwise_cudnn"),
    ({"side": 3, "dtype": "bf16"}, "depthwise"),
    ({"side": 3, "dtype": "fp16", "width": 6}, "depthwise"),
    ({"side": 3, "dtype": "fp16", "stride": [2, 2]}, "depthwise"),
    ({"side": 3, "dtype": "fp16", "dilation": [2, 2]}, "depthwise"),
    ({"side": 7, "last": True}, "depthwise_cudnn"),
    ({"side": 7, "groups": 1}, ""),
])  # fmt: skip
def test_torchs_choice(settings: dict[str, Any], name: str) -> None:
    assert backend_name(**settings) == name


def test_weights_of_one_channel_are_not_channels_last() -> None:
    assert is_channels_last(tensor(2, 96, 7, 7, last=True))
    assert not is_channels_last(tensor(2, 96, 7, 7))
    assert not is_channels_last(tensor(96, 1, 7, 7))
    assert not is_channels_last(tensor(2, 96, 1, 1))


def test_torchs_own_kernels_add_the_bias_themselves() -> None:
    x, weight, bias = tensor(8, 96, 14, 14), tensor(96, 1, 7, 7), tensor(96)
    own = convolution(call(x, weight, bias=bias), Precision(conv_tf32=True))
    assert [(k.family, k.dtype) for k in own] == [("conv", "fp32")]
    last = tensor(8, 96, 14, 14, last=True)
    assert [k.family for k in convolution(call(last, weight, bias=bias), Precision())] == [
        "conv",
        "elementwise",
    ]


def test_a_gradient_in_another_format_is_copied_first() -> None:
    x, weight = tensor(8, 96, 14, 14, last=True), tensor(96, 1, 7, 7)
    backward = call(x, weight, "convolution_backward", grad_output=tensor(8, 96, 14, 14),
                    output_mask=[True, True, False])  # fmt: skip
    made = convolution_backward(backward, Precision())
    assert [k.family for k in made] == ["transpose", "conv_dgrad", "conv_wgrad"]
    assert {k.operator for k in made[1:]} == {"depthwise_cudnn"}


@pytest.mark.parametrize(
    ("cudnn", "width", "stride", "name"),
    [
        (8, 64, 1, "grouped_direct"), (8, 24, 1, ""), (8, 24, 2, "grouped_direct"), (8, 8, 2, ""),
        (9, 64, 2, ""),
    ],
)  # fmt: skip
def test_gradients_of_wide_or_strided_groups_miss_the_tensor_cores_of_cudnn_8(
    cudnn: int, width: int, stride: int, name: str
) -> None:
    x, weight = tensor(4, 16 * width, 28, 28, dtype="fp16", last=True), tensor(16 * width, width, 3, 3)
    arguments = {"grad_output": x, "input": x, "weight": weight, "groups": 16, "stride": [stride, stride]}
    backward = AtenCall("convolution_backward", (x, x, weight), (x, weight), arguments)
    made = [k for k in convolution_backward(backward, Precision(cudnn=cudnn)) if k.family.startswith("conv_")]
    assert [k.kind.variant for k in made] == [name, name]


@pytest.mark.parametrize(("cudnn", "channels", "name"), [
    (8, 96, "depthwise_cudnn"), (8, 60, "grouped_direct"), (9, 60, "depthwise_cudnn"),
])  # fmt: skip
def test_depthwise_gradients_of_uneven_widths_run_direct_kernels_of_cudnn_8(
    cudnn: int, channels: int, name: str
) -> None:
    x = tensor(64, channels, 28, 28, dtype="fp16", last=True)
    weight = tensor(channels, 1, 3, 3, dtype="fp16", last=True)
    backward = call(x, weight, "convolution_backward", grad_output=x)
    made = [k for k in convolution_backward(backward, Precision(cudnn=cudnn)) if k.family.startswith("conv_")]
    assert {k.operator for k in made} == {name}
