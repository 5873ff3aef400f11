"""Convolutions and pooling; which library runs a convolution, and in which memory format: torch's own choice.

Facts of ATen/native/Convolution.cpp (torch 2.x, cuDNN 8.2 and later): channels_last images or weights go to
cuDNN in that format. Contiguous depthwise convolutions go to torch's own kernels, except in fp16 where cuDNN
has fast ones: square filters of 1, 3 or 5 on 32 channels and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stepsight.program.aten.call import AtenCall, Precision, Sized, TensorFact, is_contiguous, size_bytes
from stepsight.program.aten.movement import pointwise_kernel
from stepsight.program.job import Kernel
from stepsight.program.variants import GROUPED_DIRECT

DEPTHWISE, DEPTHWISE_CUDNN = "depthwise", "depthwise_cudnn"
"""What kernels of one input channel a group are called: torch's own, and cuDNN's."""
LEAST_CHANNELS = 32
FILTERS = (1, 3, 5)
LEAST_WIDTH = 7


@dataclass(frozen=True, slots=True)
class ConvBackend:
    """``depthwise``: one input channel a group; ``cudnn``: not torch's own kernels; the image's format."""

    depthwise: bool
    cudnn: bool
    channels_last: bool

    @property
    def name(self) -> str:
        """What kernels are called, so that models know whose they are."""
        if not self.depthwise:
            return ""
        return DEPTHWISE_CUDNN if self.cudnn else DEPTHWISE

    @property
    def reorders(self) -> bool:
        """Whether kernels that read images by pixel find them by channel."""
        return self.cudnn and not self.depthwise and not self.channels_last

    def converts(self, tensor: TensorFact) -> bool:
        """Whether a tensor is copied into the format first."""
        if not self.channels_last or len(tensor.shape) != 4:
            return not is_contiguous(tensor)
        return not is_contiguous(_by_pixel(tensor))


BLOCKED_WIDTHS = (4, 8, 16, 32)
FEWEST_GROUPS, BLOCKED_GROUPS = 16, 4
NARROW = 48
LOADED = 8
"""Channels that cuDNN 8's depthwise gradients load at once in channels_last; other widths run direct kernels.
ReXNets take 1.15 to 1.7 times as long as with widths rounded to eight (RTX 3090, torch 1.12; 1.0 to 1.06 by
channel)."""


def lacks_tensor_cores(c_in: int, c_out: int, groups: int, stride: int) -> bool:
    """Gradients of groups in channels_last for which cuDNN 8 has direct kernels alone.

    Read off training steps of 50 models on an RTX 3090 (torch 1.12, cuDNN 8.3), which cuDNN benchmarked: with
    stride 1 tensor cores run groups of up to 48 channels; with a larger stride, groups of equal widths of 4,
    8, 16 or 32 in multiples of four from 16 groups (eight of 32). Newer versions are not known to lack them.
    """
    into, out = c_in // groups, c_out // groups
    if stride == 1:
        return into > NARROW
    many = groups >= FEWEST_GROUPS or (into == BLOCKED_WIDTHS[-1] and groups >= FEWEST_GROUPS // 2)
    return not (many and groups % BLOCKED_GROUPS == 0 and into == out and into in BLOCKED_WIDTHS)


def conv_backend(image: TensorFact, weight: TensorFact, call: AtenCall) -> ConvBackend:
    """The choice for a convolution or its gradients."""
    flat = len(image.shape) == 3  # a 1-d convolution is made contiguous and runs as an image of height 1
    last = not flat and (is_channels_last(image) or is_channels_last(weight))
    channels, groups = image.shape[1], call.get("groups", 1)
    depthwise = (
        not call.get("transposed", False)
        and len(image.shape) in (3, 4, 5)
        and groups == channels > 1
        and weight.shape[0] % channels == 0
    )
    return ConvBackend(depthwise, not depthwise or last or _fast_in_half(image, weight, call), last)


def is_channels_last(t: Sized) -> bool:
    """torch's test: strides grow from channel over width and height to image."""
    if len(t.shape) != 4 or t.strides[1] == 0:
        return False
    least = 0
    for i in (1, 3, 2, 0):
        if t.shape[i] == 0 or t.strides[i] < least or (i == 0 and least == t.strides[1]):
            return False
        least = t.strides[i] * max(t.shape[i], 1)
    return True


def _fast_in_half(image: TensorFact, weight: TensorFact, call: AtenCall) -> bool:
    if not image.dtype == weight.dtype == "fp16" or len(image.shape) > 4:
        return False
    if image.shape[1] < LEAST_CHANNELS or any(d != 1 for d in _listed(call.get("dilation", 1))):
        return False
    strides = _listed(call.get("stride", 1))
    batch, channels, *spatial = image.shape
    if len(spatial) == 1 or spatial[0] == 1:
        if strides[-1] == 1:
            return True
        if len(spatial) == 1:
            return False
    if len(set(strides)) > 1:
        return False
    side, wide, stride = weight.shape[-1], spatial[-1], strides[-1]
    if weight.shape[-2] != side or side not in FILTERS or wide < LEAST_WIDTH:
        return False
    if stride != 2:
        return stride == 1
    if side == 1:
        return wide <= 28 if batch == 1 else batch <= 16 and channels >= 128 and wide <= LEAST_WIDTH
    return batch == 1 or channels >= 512 or (channels >= 256 and wide >= 28)


def _by_pixel(t: TensorFact) -> TensorFact:
    order = (0, 2, 3, 1)
    return TensorFact(tuple(t.shape[i] for i in order), t.dtype, tuple(t.strides[i] for i in order))


def _listed(values: Sequence[int] | int) -> Sequence[int]:
    return (values,) if isinstance(values, int) else (values or (1,))


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
    dtype = _dtype(backend, x.dtype, precision)
    transposed, groups = call.get("transposed", False), call.get("groups", 1)

    stride = max(_listed(call.get("stride", 1)))
    old = precision.cudnn < 9 and groups > 1 and backend.channels_last
    if backend.depthwise:
        lacks = old and x.shape[1] % LOADED > 0
    else:
        lacks = old and lacks_tensor_cores(x.shape[1], gradient.shape[1], groups, stride)
    name = GROUPED_DIRECT if lacks else backend.name
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
