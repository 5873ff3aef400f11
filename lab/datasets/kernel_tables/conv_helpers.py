"""Kernels around a convolution's own: what they move, by their names and grids.

Winograd's algorithm transforms image, filters and result in kernels of their own; libraries copy images into
another order and clear or convert buffers. None of them computes a convolution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, log, prod

from stepsight.program.aten.call import TensorFact
from stepsight.program.job import Kernel
from stepsight.trace.events import Event
from stepsight.trace.kernel_names import PRODUCT, elements_by_grid, kinds_of, on_tensor_cores
from stepsight.trace.operators import fact, tensors_of

_WINOGRAD = re.compile(r"winograd(Forward|Wgrad|Bwd)?\w*?(Data|Filter|Output|Delta)(\d)x\d", re.IGNORECASE)
_WEIGHTS = re.compile(r"wgrad|bwd_?weight|BwdW|bwd_?filter|_wrw|backward_weight", re.IGNORECASE)
_TAPS = 3
"""Winograd's transforms are for filters of 3×3."""
_BATCHED = re.compile(r"batched_transpose_(\d+)x(\d+)")
_COPY = re.compile(
    r"nchwToNhwc|nhwcToNchw|transpose|offsets|precompute|reduce_1Block|im2d?2?col|convertTensor|NhwcToNhwc",
    re.IGNORECASE,
)
_CLEAR = re.compile(
    r"SubTensorOpWithScalar|scalePackedTensor|init_device_workspace|kernel_helper_stage|memset",
    re.IGNORECASE,
)
_CONVERT = re.compile(r"SubTensorOpWithCast|generateWinograd", re.IGNORECASE)
_PER_THREAD = 4.2
"""Elements that a thread of a layout kernel moves at most: blocks of 256 threads hold tiles of 32×32."""
_PRODUCTS = {16: 2, 36: 4}
"""Matrices that Winograd's products come in, and the pixels along a tile's side."""


def helper_kernel(
    op: Event, event: Event, image: TensorFact, weight: TensorFact, result: TensorFact | None
) -> Kernel | None:
    """What a helper moves; None for the convolution's own kernel. ``result``: the gradient of a backward."""
    of_weights = "backward_weight" in op.name
    made = _winograd(event, image, weight, result) or _winograd_product(event, image, weight, of_weights)
    if made is not None:
        return made
    if _CLEAR.search(event.name):
        if "workspace" in event.name or "helper_stage" in event.name:
            return Kernel.of("fill", image.dtype, operator="workspace", bytes=elements_by_grid(event))
        if "scalePackedTensor" in event.name:  # an element a thread
            width = max(image.bytes // max(image.elements, 1), 1)
            return Kernel.of("fill", image.dtype, operator="clear", bytes=width * elements_by_grid(event))
        cleared = image if result is not None else _forward_result(image, weight)
        # Layers that add channels to an image mostly halve its height and width.
        halved = result is None and weight.shape[0] > image.shape[1]
        return Kernel.of(
            "fill", image.dtype, operator="clear", bytes=max(cleared.bytes / (4 if halved else 1), 1)
        )
    if _CONVERT.search(event.name):
        # Sums in fp32 become the weights' gradient.
        n = max(weight.elements, 1)
        return Kernel.of("elementwise", weight.dtype, operator="cast", elements=n, read_bytes=4.0 * n,
                         write_bytes=float(weight.bytes))  # fmt: skip
    if not _COPY.search(event.name) and "winograd_nonfused" not in event.name:
        return None
    other = result or _forward_result(image, weight)
    return Kernel.of(
        "transpose", image.dtype, operator="layout", elements=_moved(event, image, weight, other)
    )


def _moved(event: Event, image: TensorFact, weight: TensorFact, other: TensorFact) -> int:
    """Elements that a copy brings into another order: its tiles where the name states them, else the largest
    tensor that the grid can cover."""
    tile = _BATCHED.search(event.name)
    if tile:
        return max(int(prod(_blocks(event)) * int(tile[1]) * int(tile[2])), 1)
    if "im2" in event.name.lower():
        taps = weight.shape[2] * weight.shape[3]
        patches = weight.shape[2] % 2 == 0  # which do not overlap
        return max(image.elements * (1 if patches else taps), 1)
    sizes = sorted(max(t.elements, 1) for t in (weight, image, other))
    covered = [n for n in sizes if n <= _PER_THREAD * elements_by_grid(event)]
    return covered[-1] if covered else sizes[0]


def _blocks(event: Event) -> tuple[int, ...]:
    """Blocks of a grid; traces of AMD's libraries give it in work items."""
    grid = event.grid() or (1,)
    if not re.match(r"Cijk|igemm|batched_transpose|SubTensorOp|MIOpen|miopen", event.name):
        return grid
    return tuple(
        max(b // max(t, 1), 1) for b, t in zip(grid, event.block() or (1,) * len(grid), strict=False)
    )


def _forward_result(image: TensorFact, weight: TensorFact) -> TensorFact:
    """The result of a forward at stride one."""
    return fact((image.shape[0], weight.shape[0], *image.shape[2:]), image.dtype)


def _winograd(
    event: Event, image: TensorFact, weight: TensorFact, result: TensorFact | None
) -> Kernel | None:
    """One of the transforms: a plain image or filter on one side, its tiles on the other."""
    found = _WINOGRAD.search(event.name)
    if found is None or "nonfused" not in event.name or image.shape[2] <= 0:
        return None
    stage, side = found[2].lower(), int(found[3])
    values = (side + _TAPS - 1) ** 2  # of a tile after the transform
    batch, c_in, high, wide = image.shape
    c_out, tiles = weight.shape[0], ceil(high / side) * ceil(wide / side)
    weights_too = (found[1] or "").lower() == "wgrad"
    if stage == "filter" or (stage == "output" and weights_too):
        plain, spread = weight.elements, values * c_in * c_out
    else:
        # The image's transform, or that of the other image: a forward's result, a backward's gradient.
        channels = c_in if (stage == "data") == (result is None or weights_too) else c_out
        plain, spread = batch * channels * high * wide, values * tiles * batch * channels
    width = max(image.bytes // max(image.elements, 1), 1)
    reads, writes = (spread, plain) if stage == "output" else (plain, spread)
    return Kernel.of(
        "elementwise", image.dtype, operator="winograd_transform", elements=spread,
        read_bytes=float(width * reads), write_bytes=float(width * writes),
    )  # fmt: skip


def _winograd_product(event: Event, image: TensorFact, weight: TensorFact, of_weights: bool) -> Kernel | None:
    """The products between the transforms: one a value of the tiles, over tiles and channels."""
    depth = (*event.grid(), 1, 1, 1)[2]
    if "sgemm" not in event.name or depth not in _PRODUCTS or weight.shape[2] != _TAPS:
        return None
    side = _PRODUCTS[depth]
    tiles = image.shape[0] * ceil(image.shape[2] / side) * ceil(image.shape[3] / side)
    c_in, c_out = image.shape[1], weight.shape[0]
    m, n, k = (c_in, c_out, tiles) if of_weights else (tiles, c_out, c_in)
    return Kernel.of("gemm", image.dtype, operator="bmm", batch=depth, m=m, n=n, k=k)


_FEW_CHANNELS = 4
"""An image of so few channels is the network's input."""


@dataclass(frozen=True, slots=True)
class ConvInputs:
    image: TensorFact
    weight: TensorFact
    gradient: TensorFact | None


def conv_inputs(op: Event, event: Event) -> ConvInputs | None:
    found = [t for t in tensors_of(op) if len(t.shape) == 4]
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


def _separate(op: Event, event: Event, gradient: TensorFact, other: TensorFact) -> ConvInputs:
    """Before torch 1.11 each gradient was an operator of its own and had the third tensor's sizes as numbers,
    which traces do not hold: an image as large as its result; a window that channels and sizes suggest."""
    batch, c_out, high, wide = gradient.shape
    if "backward_input" in op.name:
        # At stride one cuDNN has Winograd's algorithm for larger windows; its plain engine runs the others.
        times = 2 if other.shape[2] > 1 and "dgrad_engine" in event.name else 1
        image = fact((batch, other.shape[1], times * high, times * wide), gradient.dtype)
        return ConvInputs(image, other, gradient)
    # A window of one tap changes the number of channels, a larger one usually keeps it.
    side = 3 if other.shape[1] == c_out else 7 if other.shape[1] <= _FEW_CHANNELS else 1
    return ConvInputs(other, fact((c_out, other.shape[1], side, side), other.dtype), gradient)


def _conv_kernel(op: Event, event: Event, inputs: ConvInputs) -> Kernel:
    """A convolution or one of its gradients from one kernel's row, whose scalars were not recorded."""
    b, c_in, h, w = inputs.image.shape
    c_out, per_group, kh, kw = inputs.weight.shape
    if inputs.gradient is None:
        stride, padding = stride_by_grid(event, inputs.image.shape, inputs.weight.shape)
        family = "conv"
    else:
        padding = (kh - 1) // 2
        stride = max(1, round((h + 2 * padding - kh + 1) / max(inputs.gradient.shape[2], 1)))
        family = "conv_wgrad" if _WEIGHTS.search(f"{op.name} {event.name}") else "conv_dgrad"
    dtype = inputs.image.dtype
    if dtype == "fp32" and on_tensor_cores(event.name):
        dtype = "tf32"
    return Kernel.of(
        family, dtype, operator=_name(op, event), batch=b, c_in=c_in, c_out=c_out, h=h, w=w, kh=kh, kw=kw,
        stride=stride, padding=padding, groups=max(c_in // max(per_group, 1), 1),
    )  # fmt: skip


def _name(op: Event, event: Event) -> str:
    """The operator's; with the library that its kernel is of."""
    return f"{op.name} (cudnn)" if re.search(r"c1_k1|grouped_direct", event.name, re.I) else op.name


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
    covered = prod(_blocks(event)) * a * b
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


def convolution_of_row(op: Event, event: Event) -> Kernel | None:
    """A convolution of one kernel without the others of its call; kernels around it move image or weights."""
    plain = "conv" in op.name.lower() and "::" in op.name and "transpose" not in op.name
    inputs = conv_inputs(op, event) if plain else None
    if inputs is None:
        return None
    helper = helper_kernel(op, event, inputs.image, inputs.weight, inputs.gradient)
    if helper is not None:
        return helper
    own = PRODUCT in kinds_of(event.name) or "scudnn" in event.name
    return _conv_kernel(op, event, inputs) if own else None
