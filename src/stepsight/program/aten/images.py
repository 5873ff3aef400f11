"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stepsight.program.aten.call import AtenCall, Precision, TensorFact, size_bytes
from stepsight.program.aten.conv_backend import ConvBackend, conv_backend
from stepsight.program.aten.movement import pointwise_kernel
from stepsight.program.job import Kernel


def _last(values: Sequence[int] | int | None, default: int) -> int:
    if values is None:
        return default
    if isinstance(values, int):
        return values
    return values[-1] if values else default


def conv_kernel(
    family: str,
    image: TensorFact,
    weight: TensorFact,
    result: TensorFact,
    call: AtenCall,
    dtype: str,
    name: str = "",
    *,
    reordered: bool = False,
) -> Kernel:
    """A convolution's sizes in two dimensions; one dimension lies in a row, a third is folded in.

    ``image`` is what a forward convolution reads and ``result`` what it makes, in whichever direction
    data goes. Padding is the one that gives ``result``'s size, so dilation and uneven padding are right.
    """
    stride, groups = _last(call.get("stride"), 1), call.get("groups", 1)
    spatial = image.shape[2:]
    high, wide = (1, spatial[-1]) if len(spatial) == 1 else spatial[-2:]
    out_high, out_wide = (1, result.shape[-1]) if len(spatial) == 1 else result.shape[-2:]
    kernel_high, kernel_wide = (1, weight.shape[-1]) if len(spatial) == 1 else weight.shape[-2:]
    pads = [((o - 1) * stride + k - i) / 2 for o, k, i in
            ((out_high, kernel_high, high), (out_wide, kernel_wide, wide))]  # fmt: skip
    pads = [max(p, 0.0) for p in pads]
    if pads[0] != pads[1]:  # the family has one padding: uneven ones become part of the image
        high, wide, pads = high + round(2 * pads[0]), wide + round(2 * pads[1]), [0.0, 0.0]
    depth = prod(result.shape[2:-2]) if len(spatial) > 2 else 1
    folded = prod(weight.shape[2:-2]) if len(spatial) > 2 else 1
    return Kernel.of(
        family, dtype, operator=name, batch=image.shape[0] * depth, c_in=image.shape[1] * folded,
        c_out=result.shape[1], h=high, w=wide, kh=kernel_high, kw=kernel_wide, stride=stride,
        padding=pads[0], groups=groups, reordered=int(reordered),
    )  # fmt: skip


def _dtype(backend: ConvBackend, dtype: str, precision: Precision) -> str:
    """Depthwise kernels have no use for tensor cores."""
    return dtype if backend.depthwise else precision.conv(dtype)


def _into_format(backend: ConvBackend, *tensors: TensorFact) -> list[Kernel]:
    """Copies of tensors that lie in another memory format than the library reads."""
    return [
        Kernel.of("transpose", t.dtype, operator="layout", elements=max(t.elements, 1))
        for t in tensors if backend.converts(t)
    ]  # fmt: skip


def convolution(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A transposed convolution is the input gradient of the plain one that leads back."""
    x, weight, out = call.arguments["input"], call.arguments["weight"], call.made_on_gpu[0]
    backend = conv_backend(x, weight, call)
    dtype = _dtype(backend, x.dtype, precision)
    kernels = _into_format(backend, x, weight)
    if call.get("transposed", False):
        kernels.append(conv_kernel("conv_dgrad", out, weight, x, call, dtype, reordered=backend.reorders))
    else:
        kernels.append(
            conv_kernel("conv", x, weight, out, call, dtype, backend.name, reordered=backend.reorders)
        )
    if isinstance(call.arguments.get("bias"), TensorFact) and backend.cudnn:  # torch's own kernels add it
        kernels.append(pointwise_kernel("add", (out, call.arguments["bias"]), out))
    return kernels


def convolution_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    gradient, x, weight = (call.arguments[name] for name in ("grad_output", "input", "weight"))
    backend = conv_backend(x, weight, call)
    dtype, name = _dtype(backend, x.dtype, precision), backend.name
    transposed = call.get("transposed", False)
    mask = call.get("output_mask", (True, True, True))
    image, result = (gradient, x) if transposed else (x, gradient)
    kernels = _into_format(backend, gradient)
    if mask[0]:
        kernels += _into_format(backend, weight)
        family = "conv" if transposed else "conv_dgrad"
        kernels.append(
            conv_kernel(family, image, weight, result, call, dtype, name, reordered=backend.reorders)
        )
    if mask[1]:
        kernels += _into_format(backend, x)
        kernels.append(
            conv_kernel("conv_wgrad", image, weight, result, call, dtype, name, reordered=backend.reorders)
        )
    if mask[2]:
        channels = gradient.shape[1]
        kernels.append(Kernel.of("reduce", gradient.dtype, operator="sum", rows=channels,
                                 cols=max(gradient.elements // max(channels, 1), 1)))  # fmt: skip
    return kernels


def pool(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Pooling and resampling: inputs read once, results written once."""
    out = call.made_on_gpu[0]
    return [
        Kernel.of("pool", out.dtype, operator=call.name, elements=max(out.elements, 1),
                  read_bytes=float(sum(size_bytes(t) for t in call.on_gpu)),
                  write_bytes=float(sum(size_bytes(t) for t in call.made_on_gpu)))
    ]  # fmt: skip
