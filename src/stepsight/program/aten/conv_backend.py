"""Which library runs a convolution on a GPU, and in which memory format: torch's own choice.

Facts of ATen/native/Convolution.cpp (torch 2.x, cuDNN 8.2 and later): channels_last images or weights go to
cuDNN in that format. Contiguous depthwise convolutions go to torch's own kernels, except in fp16 where cuDNN
has fast ones: square filters of 1, 3 or 5 on 32 channels and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.program.aten.call import AtenCall, Sized, TensorFact, is_contiguous

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
        return "depthwise_cudnn" if self.cudnn else "depthwise"

    @property
    def reorders(self) -> bool:
        """Whether kernels that read images by pixel find them by channel."""
        return self.cudnn and not self.depthwise and not self.channels_last

    def converts(self, tensor: TensorFact) -> bool:
        """Whether a tensor is copied into the format first."""
        if not self.channels_last or len(tensor.shape) != 4:
            return not is_contiguous(tensor)
        return not is_contiguous(_by_pixel(tensor))


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
