"""Convolutions from an operator's recorded inputs.

A convolution is one call of several kernels: it brings image and weights into order, works in one or more
parts, adds them up. Models time the call as a whole, so its kernels share that time in proportion to what
each took. A backward computes the image's gradient and then the weights': each has its own kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log, prod

from stepsight.program.job import Kernel
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.launch_grid import elements_by_grid, grid_blocks
from stepsight.trace.sizing.matmul_map import compute_dtype
from stepsight.trace.sizing.tensors import Tensor, positional, tensors_of

_WEIGHTS = re.compile(r"wgrad|bwd_?weight|BwdW|bwd_?filter|_wrw", re.IGNORECASE)
_IMAGE = re.compile(r"dgrad|bwd_?data|BwdD|_bwd(?!_?w)", re.IGNORECASE)
_ADDS_UP = "reduce_wgrad"
"""Kernels that add the parts of the weights' gradient up, which the kernel before them made."""
_HELPER = re.compile(r"offsets|precompute|nchwToNhwc|nhwcToNchw|transpose|generateWinograd|init_device", re.I)
"""Kernels that prepare for those after them."""
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|transpose", re.IGNORECASE)
_BACK = re.compile(r"nhwcToNchw", re.IGNORECASE)
"""Kernels that change the order of a tensor's elements; those that bring a result back."""
_TENSOR_CORES = frozenset({"tf32", "fp16", "bf16"})
"""Convolutions on tensor cores work on channels-last data: tensors in another order are moved first, which
their models leave out. In fp32 the tables time the call with all its kernels."""
_CUDNN_DEPTHWISE = re.compile(r"c1_k1|grouped_direct", re.IGNORECASE)
"""cuDNN's kernels for one channel a group."""
_PLAIN_ENGINE = re.compile(r"\bdgrad_engine\b")
"""cuDNN's plain engine for the image's gradient, which adds to an image that was cleared before it."""
_CLEARS = "scalePackedTensor"
_PADDING_FIRST = re.compile(r"::(cudnn|miopen|mkldnn)_(depthwise_)?convolution$")
"""Operators that take padding before stride (PyTorch's native_functions.yaml); others take stride first."""
_LAYOUT_SLACK = 4
"""A layout kernel with no more threads than this many per weight moves the weights, not the image."""
_FEW_CHANNELS = 4
"""An image of so few channels is the network's input, whose gradient nobody wants."""


@dataclass(frozen=True, slots=True)
class ConvInputs:
    image: Tensor
    weight: Tensor
    gradient: Tensor | None


def is_convolution(op: Event) -> bool:
    return "conv" in op.name.lower() and "::" in op.name


def conv_kernel(call: Call, event: Event) -> tuple[Kernel, float] | None:
    """A convolution, its data gradient or its weight gradient, and the share of the call's time that this
    kernel took; None where the inputs do not fit one."""
    inputs = conv_inputs(call.op, event)
    if inputs is None:
        return None
    b, c_in, h, w = inputs.image.shape
    c_out, per_group, kh, kw = inputs.weight.shape
    result = inputs.gradient or _result(call, b, c_out)
    stride, padding = _stride_padding(call.op, result, h, kh)
    if result is None and not call.op.concrete():
        stride, padding = stride_by_grid(event, inputs.image.shape, inputs.weight.shape)
    family, together = "conv", call.kernels
    if inputs.gradient is not None and "backward_weight" in call.op.name:
        family = "conv_wgrad"
    elif inputs.gradient is not None and re.search(r"backward_input|transpose$", call.op.name):
        family = "conv_dgrad"
    elif inputs.gradient is not None:
        of_image, of_weights = _parted(call, inputs.image)
        weights = any(e is event for e in of_weights)
        family, together = ("conv_wgrad", of_weights) if weights else ("conv_dgrad", of_image)
    working = tuple(e for e in together if not _LAYOUT.search(e.name)) or together
    longest = max(working, key=lambda e: e.dur)
    dtype = compute_dtype(inputs.image.dtype, longest.name)
    if dtype in _TENSOR_CORES:
        if not any(e is event for e in working):
            return _layout(family, event, inputs, result, stride), 1.0
        together = working
    if _PLAIN_ENGINE.search(longest.name):
        if _CLEARS in event.name:
            return Kernel.of(
                "fill", inputs.image.dtype, operator="clear", bytes=max(inputs.image.bytes, 1)
            ), 1.0
        together = tuple(e for e in together if _CLEARS not in e.name)
    made = Kernel.of(
        family, dtype, operator=_name(call.op, longest), batch=b,
        c_in=c_in, c_out=c_out, h=h, w=w, kh=kh, kw=kw, stride=stride, padding=padding,
        groups=max(c_in // max(per_group, 1), 1),
    )  # fmt: skip
    total = sum(e.dur for e in together)
    return made, event.dur / total if total > 0 else 1.0 / len(together)


def _layout(family: str, event: Event, inputs: ConvInputs, result: Tensor | None, stride: int) -> Kernel:
    """A kernel that brings a tensor into the order that tensor cores want, or the result back from it."""
    image, weight = inputs.image, inputs.weight
    b, _, h, w = image.shape
    made = result.elements if result else b * weight.shape[0] * (h // stride or 1) * (w // stride or 1)
    reads = {"conv": image.elements, "conv_dgrad": made, "conv_wgrad": (image.elements + made) / 2}
    writes = {"conv": made, "conv_dgrad": image.elements, "conv_wgrad": weight.elements}
    moved = (writes if _BACK.search(event.name) else reads)[family]
    if elements_by_grid(event) <= _LAYOUT_SLACK * weight.elements < moved:
        moved = weight.elements
    return Kernel.of("transpose", image.dtype, operator="layout", elements=float(moved))


def _name(op: Event, longest: Event) -> str:
    """The operator's; with the library or the engine that its kernel is of, where the operator leaves that
    open."""
    if _PLAIN_ENGINE.search(longest.name):
        return f"{op.name} (dgrad_engine)"
    return f"{op.name} (cudnn)" if _CUDNN_DEPTHWISE.search(longest.name) else op.name


def _result(call: Call, batch: int, channels: int) -> Tensor | None:
    """What a forward made, by the first operator after it that reads an image with that many channels."""
    for op in call.following:
        for tensor in tensors_of(op):
            if len(tensor.shape) == 4 and tensor.shape[:2] == (batch, channels):
                return tensor
    return None


def conv_inputs(op: Event, event: Event) -> ConvInputs | None:
    found = [t for t in positional(op) if t is not None and len(t.shape) == 4]
    if op.name.endswith("convolution_transpose") and len(found) >= 2:
        return _transposed(*found[:2])
    if "backward" not in op.name.lower():
        return ConvInputs(found[0], found[1], None) if len(found) >= 2 else None
    if len(found) == 2 and re.search(r"backward_(input|weight)", op.name):
        return _separate(op, event, *found)
    if len(found) < 3:
        return None
    # convolution_backward(grad, input, weight); cudnn's own was (input, grad, weight).
    first, second, weight = found[:3]
    old = "cudnn" in op.name or "miopen" in op.name
    return ConvInputs(first, weight, second) if old else ConvInputs(second, weight, first)


def _transposed(image: Tensor, weight: Tensor) -> ConvInputs:
    """A transposed convolution is the image's gradient of the plain one that leads back: what it makes is as
    much larger as its window is wide, for windows that do not overlap."""
    times = weight.shape[2] if weight.shape[2] % 2 == 0 else 1
    b, _, high, wide = image.shape
    made = Tensor((b, weight.shape[1], times * high, times * wide), image.dtype)
    return ConvInputs(made, weight, image)


def _separate(op: Event, event: Event, gradient: Tensor, other: Tensor) -> ConvInputs:
    """Before torch 1.11 each gradient was an operator of its own and had the third tensor's sizes as numbers,
    which traces do not hold: an image as large as its result; a window that channels and sizes suggest."""
    batch, c_out, high, wide = gradient.shape
    if "backward_input" in op.name:
        # At stride one cuDNN has Winograd's algorithm for larger windows; its plain engine runs the others.
        times = 2 if other.shape[2] > 1 and "dgrad_engine" in event.name else 1
        image = Tensor((batch, other.shape[1], times * high, times * wide), gradient.dtype)
        return ConvInputs(image, other, gradient)
    # A window of one tap changes the number of channels, a larger one usually keeps it.
    side = 3 if other.shape[1] == c_out else 7 if other.shape[1] <= _FEW_CHANNELS else 1
    return ConvInputs(other, Tensor((c_out, other.shape[1], side, side), other.dtype), gradient)


def _parted(call: Call, image: Tensor) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """The kernels of the image's gradient and those of the weights', which come after them."""
    kernels = call.kernels
    wanted = _output_mask(call.op)
    if wanted is None:
        wanted = (image.shape[1] > _FEW_CHANNELS, True)
    if wanted != (True, True):
        return (kernels, ()) if wanted[0] else ((), kernels)
    if len(kernels) == 1:
        return ((), kernels) if _WEIGHTS.search(kernels[0].name) else (kernels, ())
    at = _first_of_weights(kernels)
    return kernels[:at], kernels[at:]


def _first_of_weights(kernels: tuple[Event, ...]) -> int:
    """Where the weights' gradient begins: by the kernels' names, else where half of the time is over."""
    named = [i for i, e in enumerate(kernels) if _WEIGHTS.search(e.name)]
    others = [i for i, e in enumerate(kernels) if _IMAGE.search(e.name) and i not in named]
    if named:
        at = named[0]
        if _ADDS_UP in kernels[at].name and at > max(others, default=-1) + 1:
            at -= 1  # the product in parts has no name of its own
        # What prepares it has no name of its own; the kernels of the image before it do.
        while at > (max(others, default=-1) + 1) and _prepares(kernels[at - 1]):
            at -= 1
        return at
    if others:
        return max(others) + 1 if max(others) + 1 < len(kernels) else len(kernels)
    if len(kernels) < 2:
        return 0
    over = list(accumulate(e.dur for e in kernels))
    return 1 + min(range(len(kernels) - 1), key=lambda i: abs(over[i] - over[-1] / 2))


def _prepares(event: Event) -> bool:
    """Whether a kernel prepares for those after it; one that brings a result back does not."""
    return bool(_HELPER.search(event.name)) and not _BACK.search(event.name)


def _output_mask(op: Event) -> tuple[bool, bool] | None:
    """Which gradients were asked for, where the trace has the call's scalars."""
    for text in op.concrete():
        if isinstance(text, str) and re.fullmatch(r"\[(True|False)(, (True|False)){2}\]", text):
            image, weights, _ = (x == "True" for x in re.findall(r"True|False", text))
            return image, weights
    return None


def _stride_padding(op: Event, result: Tensor | None, h: int, kh: int) -> tuple[int, int]:
    """From the recorded scalars; else the stride that fits the output, with "same" padding."""
    lists = [
        [int(x) for x in re.findall(r"-?\d+", text)]
        for text in op.concrete()
        if isinstance(text, str) and re.fullmatch(r"\[\d+(, \d+)*\]", text)
    ]
    if "backward" not in op.name.lower() and len(lists) >= 2:
        first, second = lists[0][0], lists[1][0]
        return (max(second, 1), first) if _PADDING_FIRST.search(op.name) else (max(first, 1), second)
    padding = (kh - 1) // 2
    if result is not None and 0 < result.shape[2] <= h:
        return max(1, round((h + 2 * padding - kh + 1) / result.shape[2])), padding
    return 1, padding


_TILE = re.compile(r"(?:tilesize|_bt|_)(\d{2,3})x(\d{2,3})(?!\d)")
_LOGARITHMS = re.compile(r"(?:im|ex)plicit_convolve_sgemm<\w+, (?:float|int), \d+, (\d), (\d),")
"""cuDNN's older kernels name the binary logarithms of a tile's pixels and channels."""
_PERSISTENT = re.compile(r"sm90_|sm100_|warpgroup", re.IGNORECASE)
"""Kernels that stay on the GPU and take tile after tile: their grids count multiprocessors."""
_STRIDES = (1, 2, 4)
_SLACK = 1.3
"""A grid speaks for a stride if its tiles cover the result to within this factor."""


def stride_by_grid(event: Event, image: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, int]:
    """Stride and padding: those whose result the grid's tiles cover; else the usual ones.

    A window with an even side keeps no size at stride one: it cuts the image into patches.
    """
    side = weight[2]
    patches = side % 2 == 0
    padding = 0 if patches else (side - 1) // 2
    usual = side if patches else 1
    tile = _tile(event.name)
    if tile is None or not event.grid():
        return usual, padding
    a, b = tile
    covered = prod(grid_blocks(event)) * a * b
    found, least = usual, log(_SLACK)
    for stride in sorted({*_STRIDES, usual}):
        high, wide = ((n + 2 * padding - side) // stride + 1 for n in image[2:4])
        pixels = max(image[0] * high * wide, 1)
        for rows, cols in ((a, b), (b, a)):
            needed = ceil(pixels / rows) * rows * ceil(weight[0] / cols) * cols
            off = abs(log(covered / needed))
            if off < least:
                found, least = stride, off
    return found, padding


def _tile(kernel: str) -> tuple[int, int] | None:
    """The sides of a block's tile by the kernel's name; None where the name or the grid does not tell."""
    named = _LOGARITHMS.search(kernel)
    if named:
        return 2 ** int(named[1]), 2 ** int(named[2])
    found = None if _PERSISTENT.search(kernel) else _TILE.search(kernel)
    return (int(found[1]), int(found[2])) if found else None
