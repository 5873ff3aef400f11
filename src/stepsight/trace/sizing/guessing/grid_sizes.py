"""Sizes where a trace recorded no shapes: read off the launch grid and the kernel's own name.

PyTorch's element-wise kernels handle a known number of elements per block. What GEMMs and
concatenations hide, the kernels beside them tell (`gemm_grids`, `concat_grids`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.guessing.concat_grids import concat_by_grid
from stepsight.trace.sizing.guessing.conv_grids import conv_by_neighbours, image_elements, is_norm
from stepsight.trace.sizing.guessing.gemm_grids import gemm_by_grid, grid_of
from stepsight.trace.sizing.guessing.named_sizes import attention_by_name, row_length, softmax_by_name
from stepsight.trace.sizing.guessing.persistent_gemms import row_width
from stepsight.trace.sizing.guessing.precision import dtype_by_name
from stepsight.trace.sizing.guessing.region_products import product_of_region
from stepsight.trace.sizing.launch_grid import elements_by_grid, is_elementwise
from stepsight.trace.sizing.sort_map import sort_kernel

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts

_CHUNK = 65536
"""Elements of a chunk in PyTorch's and apex's multi-tensor kernels."""
_CHUNK_FILLED = RULES.value("chunk_filled")
_ROW_KERNELS = (
    ("softmax_warp_backward", "softmax_backward"), ("SoftMaxBackward", "softmax_backward"),
    ("softmax", "softmax"), ("SoftMax", "softmax"), ("nll_loss_backward", "nll_loss_backward"),
    ("nll_loss_forward", "nll_loss"), ("layer_norm_grad", "layer_norm_backward"),
    ("GammaBetaBackward", "layer_norm_backward"), ("layer_norm", "layer_norm"), ("LayerNorm", "layer_norm"),
    ("bn_bw", "batch_norm_backward"), ("bn_fw", "batch_norm"),
)  # fmt: skip
"""Kernels that work on rows, by what their names hold; the rows' length does not show."""
_LOOKUP = re.compile(r"split_embedding\w*_(forward|backward)\w*<[^(]*?,\s*(\d+)(?:ul)?,\s*(\d+)(?:ul)?>\(")
"""FBGEMM's lookup kernels: vectors of four a thread and threads a row are their last parameters."""
_VECTOR = 4
_FEW_ELEMENTS = int(RULES.value("few_elements"))


def sized_by_grid(facts: Facts, launch: Launch, call: Call | None, event: Event) -> Kernel:
    """A kernel by its grid: an estimate of its sizes, never of its time."""
    linked = facts.linked
    name = call.op.name if call else ""
    dtype = dtype_by_name(event.name) if not event.name.startswith("triton") else facts.dtype
    convolution = conv_by_neighbours(linked, facts.conv_weights, launch, dtype)
    if convolution:
        return convolution
    sort = sort_kernel(event, beside=call.kernels if call else (), gpu=facts.gpu)
    if sort:
        return sort
    gemm = grid_of(event)
    if gemm:
        listed = product_of_region(facts, call, event, gemm, dtype) if call is not None else None
        made = listed or gemm_by_grid(facts, launch, gemm, dtype)
        # A convolution's product sums over channels and window, which no gradient's grid shows.
        return replace(made, sizing=Sizing.UNKNOWN) if "conv" in name.lower() else made
    if "multi_tensor_apply" in event.name:
        return _multi_tensor(event, name)
    lookup = _LOOKUP.search(event.name)
    if lookup:
        return _lookup(linked, launch, event, lookup)
    if "indexing_backward_kernel" in event.name:
        # A warp takes an index, the grid's depth counts what each index stands for.
        picks = float(prod(event.grid() or (1,)) * (*event.block(), 1, 1)[1])
        return Kernel.of(
            "scatter", dtype, operator="index_put", sizing=Sizing.GRID, rows=picks, cols=1, table_rows=picks
        )
    if is_norm(event) and event.grid():
        image, channels = image_elements(linked, launch), event.grid()[0]
        if image:
            family = "batch_norm_backward" if "bw" in event.name else "batch_norm"
            return Kernel.of(
                family, dtype, operator=name, sizing=Sizing.NEIGHBOURS, rows=max(image / channels, 1.0),
                cols=channels,
            )  # fmt: skip
    by_rows = prod(event.grid()[:1]) * row_width(linked, facts.compiled, launch)
    elements = max(elements_by_grid(event), by_rows)
    width = {"fp32": 4, "fp64": 8}.get(dtype, 2)
    if "reduce_kernel" in event.name:
        return Kernel.of(
            "reduce", dtype, operator=name, sizing=Sizing.GRID, rows=max(elements / 64, 1), cols=64
        )
    named = softmax_by_name(event, dtype, name) or attention_by_name(event, dtype, name)
    if named:
        return named
    for word, family in _ROW_KERNELS:
        if word in event.name and not event.name.startswith("triton"):
            length = row_length(linked, launch)
            if length:
                rows = float(prod(event.grid() or (1,)))
                return Kernel.of(
                    family, dtype, operator=name, sizing=Sizing.NEIGHBOURS, rows=rows, cols=length
                )
            rows = max(elements / 128, 1)
            return Kernel.of(family, dtype, operator=name, sizing=Sizing.UNKNOWN, rows=rows, cols=128)
    if "dropout_kernel" in event.name:
        return Kernel.of("dropout", dtype, operator=name, sizing=Sizing.COUNTED, elements=4 * elements)
    if "CatArray" in event.name:
        return concat_by_grid(facts, launch, event, dtype, width)
    if "FillFunctor" in event.name:
        return Kernel.of("fill", dtype, operator=name, sizing=Sizing.COUNTED, bytes=elements * width)
    inputs = 2 if _binary(event.name) else 1
    read_width, write_width = _widths(name, event.name, width)
    # Few threads are launch latency, unless they ran longer: persistent kernels loop over their work.
    latency = elements < _FEW_ELEMENTS and event.dur <= RULES.value("latency_bound")
    sizing = Sizing.COUNTED if is_elementwise(event) or latency else Sizing.UNKNOWN
    return Kernel.of(
        "elementwise", dtype, operator=name, sizing=sizing, elements=elements,
        read_bytes=inputs * elements * read_width, write_bytes=elements * write_width,
    )  # fmt: skip


def _widths(op: str, kernel: str, width: int) -> tuple[int, int]:
    """Bytes of an element read and written: logic reads and comparisons write single bytes, and a
    cast is named by its result, mostly between four bytes and two."""
    call = op.split("::")[-1].rstrip("_")
    if "direct_copy" in kernel and "LoadWithCast" in kernel:
        return (2 if width == 4 else 4), width
    if call.startswith(("logical_", "bitwise_")):
        return 1, 1
    return (width, 1) if call in ("lt", "le", "gt", "ge", "eq", "ne", "isfinite", "isnan") else (width, width)


def _multi_tensor(event: Event, name: str) -> Kernel:
    """A foreach or fused optimizer kernel: a block takes a chunk of one tensor of each list."""
    lists = re.search(r"TensorList\w*Metadata<(\d+)", event.name)
    depth = int(lists[1]) if lists else 2
    elements = float(prod(event.grid() or (1,)) * _CHUNK * _CHUNK_FILLED)
    return Kernel.of(
        "optimizer", operator=name, sizing=Sizing.COUNTED, elements=elements, read_bytes=4 * depth * elements,
        write_bytes=4 * max(depth - 1, 1) * elements, tensors=30,
    )  # fmt: skip


def _lookup(linked: LinkedTrace, launch: Launch, event: Event, found: re.Match[str]) -> Kernel:
    """A lookup by its bags (a warp each) and the widest row that its registers hold.

    At least one row a bag is read; how many more, and how many of those from cache, no grid shows.
    A backward runs on a capped grid: its bags are those of the forward with the same row width.
    """
    width = _VECTOR * int(found[2]) * int(found[3])
    if found[1] == "forward":
        bags = float(prod(event.grid() or (1,)) * (*event.block(), 1, 1)[1])
        size = 4.0 * bags * width
        return Kernel.of("elementwise", operator="lookup", sizing=Sizing.UNKNOWN, elements=bags * width,
                         read_bytes=size, write_bytes=size)  # fmt: skip
    for other in linked.before(launch, len(linked.launches)):
        forward = _LOOKUP.search(other.gpu[0].name)
        if forward and forward[1] == "forward" and forward[2] == found[2]:
            made = _lookup(linked, other, other.gpu[0], forward)
            return Kernel.of(
                "elementwise", operator="lookup_backward", sizing=Sizing.UNKNOWN,
                elements=made.dim("elements"), read_bytes=made.dim("write_bytes"), write_bytes=1.0,
            )  # fmt: skip
    size = 4.0 * elements_by_grid(event)
    return Kernel.of(
        "elementwise", operator="lookup_backward", sizing=Sizing.UNKNOWN, elements=size / 4, read_bytes=size,
        write_bytes=size,
    )  # fmt: skip


def _binary(name: str) -> bool:
    return (
        "BinaryFunctor" in name
        or "CUDAFunctor_add" in name
        or ("CUDAFunctorOnSelf" not in name and "Functor_add" in name)
    )
