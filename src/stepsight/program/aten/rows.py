"""Row-wise kernels: softmax, normalisations, reductions, scans, losses, dropout."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from stepsight.program.aten.call import AtenCall, Precision, Sized, TensorFact, elements, size_bytes
from stepsight.program.job import Kernel


def row_kernel(family: str, x: Sized, over: int = 1) -> Kernel:
    """A kernel over the rows of ``x``: a row is its last ``over`` dimensions."""
    cols = prod(x.shape[len(x.shape) - over :]) if x.shape else 1
    return Kernel.of(family, x.dtype, rows=max(elements(x) // max(cols, 1), 1), cols=max(cols, 1))


def reduce_kernel(x: Sized, rows: int, name: str = "sum") -> Kernel:
    """``rows`` results, each of as many inputs as there are for it."""
    rows = max(rows, 1)
    return Kernel.of("reduce", x.dtype, operator=name, rows=rows, cols=max(elements(x) // rows, 1))


def _along(family: str, x: TensorFact, dim: int, name: str = "") -> Kernel:
    cols = x.shape[dim] if x.shape else 1
    rows = max(x.elements // max(cols, 1), 1)
    return Kernel.of(family, x.dtype, operator=name, rows=rows, cols=max(cols, 1))


def softmax(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[0]
    kernel = _along("softmax", x, call.get("dim", -1))
    out = call.made_on_gpu[0] if call.made_on_gpu else x
    if out.dtype != x.dtype:  # converts on the way: computed and written in the wider type
        kernel = replace(kernel, dtype=out.dtype)
    return [kernel]


def softmax_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    """torch multiplies gradient and output of a softmax before its kernel; a log-softmax needs no product."""
    return [_along("softmax_backward", call.on_gpu[1], call.get("dim", -1), call.name)]


def layer_norm(call: AtenCall, precision: Precision) -> list[Kernel]:
    return [row_kernel("layer_norm", call.on_gpu[0], len(call.get("normalized_shape", (0,))))]


def layer_norm_backward_kernels(x: Sized, over: int = 1, *, affine: bool = True) -> list[Kernel]:
    """The input's gradient by rows; those of weight and bias in a second kernel, by columns."""
    kernels = [row_kernel("layer_norm_backward", x, over)]
    if affine:
        kernels.append(row_kernel("layer_norm_weights", x, over))
    return kernels


def layer_norm_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[1]
    mask = call.get("output_mask", (True, True, True))
    return layer_norm_backward_kernels(x, len(call.get("normalized_shape", (0,))), affine=any(mask[1:]))


def group_norm(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[0]
    rows = call.arguments["N"] * call.arguments["group"]
    statistics = Kernel.of("reduce", x.dtype, operator="moments", rows=rows, cols=max(x.elements // rows, 1))
    return [statistics, _one_pass("group_norm", x, size_bytes(x))]


def group_norm_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[1]
    rows = call.arguments["N"] * call.arguments["C"]
    sums = Kernel.of("reduce", x.dtype, operator="moments", rows=2 * rows, cols=max(x.elements // rows, 1))
    return [sums, _one_pass("group_norm_backward", x, 2 * size_bytes(x))]


def _one_pass(name: str, x: TensorFact, read: int) -> Kernel:
    return Kernel.of("elementwise", x.dtype, operator=name, elements=x.elements, read_bytes=read,
                     write_bytes=size_bytes(x))  # fmt: skip


BY_CHANNEL = "by_channel"
"""Batch norms of images in NCHW: cuDNN's kernels give every channel one block."""


def by_channels(family: str, x: TensorFact) -> Kernel:
    channels = x.shape[1] if len(x.shape) > 1 else 1
    cols = max(x.elements // max(channels, 1), 1)
    return Kernel.of(family, x.dtype, operator="" if _by_pixel(x) else BY_CHANNEL, rows=channels, cols=cols)


def _by_pixel(x: TensorFact) -> bool:
    return len(x.shape) < 3 or x.strides[1] == 1


def batch_norm(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Training finds the statistics first; with given ones it is one pass."""
    x = call.on_gpu[0]
    given = call.name == "_batch_norm_no_update" or not call.get("training", True)
    name = "batch_norm" if _by_pixel(x) else f"batch_norm_{BY_CHANNEL}"
    return [_one_pass(name, x, size_bytes(x)) if given else by_channels("batch_norm", x)]


def reduction(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[0]
    rows = call.made_on_gpu[0].elements if call.made_on_gpu else 1
    return [reduce_kernel(x, rows, call.name)]


def scan(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A running sum: every element read and written once."""
    x = call.on_gpu[0]
    out = call.made_on_gpu[0] if call.made_on_gpu else x
    return [Kernel.of("elementwise", out.dtype, operator=call.name, elements=max(x.elements, 1),
                      read_bytes=x.bytes, write_bytes=out.bytes)]  # fmt: skip


def by_classes(family: str, x: TensorFact) -> Kernel:
    """Classes stand in the second dimension of an image's scores, in the last of a list's."""
    at = 1 if len(x.shape) > 2 else -1
    return _along(family, x, at)


def loss_kernels(name: str, x: Sized) -> list[Kernel]:
    """A loss by element, then its mean."""
    size = size_bytes(x)
    return [
        Kernel.of("elementwise", x.dtype, operator=name, elements=elements(x), read_bytes=2 * size,
                  write_bytes=size),
        Kernel.of("reduce", x.dtype, operator="mean", rows=1, cols=elements(x)),
    ]  # fmt: skip


def loss(call: AtenCall, precision: Precision) -> list[Kernel]:
    kernels = loss_kernels(call.name, call.on_gpu[0])
    return kernels if call.get("reduction", 1) else kernels[:1]


def dropout_kernel(x: Sized) -> Kernel:
    return Kernel.of("dropout", x.dtype, elements=elements(x))
