"""Kernels around a convolution's own: what they move, by their names and grids.

Winograd's algorithm transforms image, filters and result in kernels of their own; libraries copy images into
another order and clear or convert buffers. None of them computes a convolution.
"""

from __future__ import annotations

import re
from math import ceil, prod

from stepsight.program.job import Kernel
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.convolutions import conv_inputs, conv_kernel, is_convolution
from stepsight.trace.sizing.launch_grid import elements_by_grid, grid_blocks
from stepsight.trace.sizing.matmul_map import GEMM_KERNEL
from stepsight.trace.sizing.tensors import Tensor

_WINOGRAD = re.compile(r"winograd(Forward|Wgrad|Bwd)?\w*?(Data|Filter|Output|Delta)(\d)x\d", re.IGNORECASE)
_TAPS = 3
"""Winograd's transforms are for filters of 3×3."""
_BATCHED = re.compile(r"batched_transpose_(\d+)x(\d+)")
_COPY = re.compile(
    r"nchwToNhwc|nhwcToNchw|transpose|offsets|precompute|reduce_1Block|im2d?2?col|convertTensor|NhwcToNhwc",
    re.IGNORECASE,
)
_CLEAR = re.compile(
    r"SubTensorOpWithScalar|scalePackedTensor|init_device_workspace|kernel_helper_stage|memset", re.IGNORECASE
)
_CONVERT = re.compile(r"SubTensorOpWithCast|generateWinograd", re.IGNORECASE)
_PER_THREAD = 4.2
"""Elements that a thread of a layout kernel moves at most: blocks of 256 threads hold tiles of 32×32."""
_PRODUCTS = {16: 2, 36: 4}
"""Matrices that Winograd's products come in, and the pixels along a tile's side."""


def helper_kernel(
    op: Event, event: Event, image: Tensor, weight: Tensor, result: Tensor | None
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


def _moved(event: Event, image: Tensor, weight: Tensor, other: Tensor) -> int:
    """Elements that a copy brings into another order: its tiles where the name states them, else the largest
    tensor that the grid can cover."""
    tile = _BATCHED.search(event.name)
    if tile:
        return max(int(prod(grid_blocks(event)) * int(tile[1]) * int(tile[2])), 1)
    if "im2" in event.name.lower():
        taps = weight.shape[2] * weight.shape[3]
        patches = weight.shape[2] % 2 == 0  # which do not overlap
        return max(image.elements * (1 if patches else taps), 1)
    sizes = sorted(max(t.elements, 1) for t in (weight, image, other))
    covered = [n for n in sizes if n <= _PER_THREAD * elements_by_grid(event)]
    return covered[-1] if covered else sizes[0]


def _forward_result(image: Tensor, weight: Tensor) -> Tensor:
    """The result of a forward at stride one."""
    return Tensor((image.shape[0], weight.shape[0], *image.shape[2:]), image.dtype)


def _winograd(event: Event, image: Tensor, weight: Tensor, result: Tensor | None) -> Kernel | None:
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


def _winograd_product(event: Event, image: Tensor, weight: Tensor, of_weights: bool) -> Kernel | None:
    """The products between the transforms: one a value of the tiles, over tiles and channels."""
    depth = (*event.grid(), 1, 1, 1)[2]
    if "sgemm" not in event.name or depth not in _PRODUCTS or weight.shape[2] != _TAPS:
        return None
    side = _PRODUCTS[depth]
    tiles = image.shape[0] * ceil(image.shape[2] / side) * ceil(image.shape[3] / side)
    c_in, c_out = image.shape[1], weight.shape[0]
    m, n, k = (c_in, c_out, tiles) if of_weights else (tiles, c_out, c_in)
    return Kernel.of("gemm", image.dtype, operator="bmm", batch=depth, m=m, n=n, k=k)


def convolution_of_row(op: Event, event: Event) -> Kernel | None:
    """A convolution of one kernel without the others of its call; kernels around it move image or weights."""
    inputs = conv_inputs(op, event) if is_convolution(op) else None
    if inputs is None:
        return None
    helper = helper_kernel(op, event, inputs.image, inputs.weight, inputs.gradient)
    if helper is not None:
        return helper
    own = GEMM_KERNEL.search(event.name) or "scudnn" in event.name
    made = conv_kernel(Call(op, (event,)), event) if own else None
    return made[0] if made else None
