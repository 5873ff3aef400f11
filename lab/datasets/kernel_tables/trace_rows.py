"""Rows of profiler traces (operator, input sizes, kernel) as kernels the models can time.

The same rules read a whole trace (``stepsight.trace``); here they meet one row at a time.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, log2

import msgspec

from lab.datasets.kernel_tables.conv_helpers import convolution_of_row
from lab.datasets.kernel_tables.rows import Rows
from stepsight.estimate import IntArray
from stepsight.kernels.columns import batches
from stepsight.prediction.kernel_times import Table
from stepsight.program.aten.call import TensorFact
from stepsight.program.job import Kernel, Sizing
from stepsight.trace.calls import sized_alone
from stepsight.trace.events import Args, Event
from stepsight.trace.kernel_names import elements_by_grid
from stepsight.trace.operators import tensors_of

_SPACED = {"longint": "long int", "unsignedchar": "unsigned char", "signedchar": "signed char"}
"""Type names that lost their blank in flat files."""

GRID_DTYPE = "bf16"
"""What kernels known by their grid alone are taken to work in."""
SPLIT = {
    "elementwise": ("elements", "read_bytes", "write_bytes"), "transpose": ("elements",), "reduce": ("cols",),
    "copy_d2d": ("bytes",), "fill": ("bytes",), "concat": ("read_bytes", "write_bytes", "inputs"),
    "optimizer": ("elements", "read_bytes", "write_bytes", "tensors"),
}  # fmt: skip
"""Families that come in parts when large, and which of their sizes a part shares."""
PER_THREAD = 8
"""Elements of a thread in Inductor's one-dimensional pointwise kernels."""
INDEXABLE_BYTES = 2.0**31
"""What PyTorch's element-wise and reducing kernels can index with 32 bits."""


def kernel_of_row(
    op: str, dims: str, types: str, kernel: str, grid: str = "[]", block: str = "[]"
) -> Kernel:  # fmt: skip
    """The family and sizes of one launched kernel; ``unsized`` where nothing states them."""
    try:
        shapes = msgspec.json.decode(dims or "[]")
        names = [_SPACED.get(name, name) for name in msgspec.json.decode(types or "[]")]
        launched = Args(grid=_raw(grid), block=_raw(block))
    except (msgspec.DecodeError, TypeError):
        return _unknown(op)
    args = Args(dims=msgspec.Raw(msgspec.json.encode(shapes)), types=msgspec.Raw(msgspec.json.encode(names)))
    call, event = Event(name=op, args=args), Event(name=kernel, args=launched)
    tensors = tensors_of(call)
    if not tensors:
        return _by_grid(event) or _unknown(op)
    made = convolution_of_row(call, event) or sized_alone(call, event)
    return _part(made, tensors, event) or _unknown(op)


def _by_grid(event: Event) -> Kernel | None:
    """A pointwise kernel without recorded inputs: its grid counts elements; a Triton kernel's signature lists
    its pointers and then the number of elements (``triton__0d1d2d3de``), others read one tensor."""
    triton = re.match(r"triton_(?!red_|per_|tem_)", event.name) is not None
    if not event.grid() or not (triton or "elementwise_kernel" in event.name):
        return None
    n = elements_by_grid(event) * (PER_THREAD if triton else 1)
    pointers = len(re.findall(r"\d+d?c?e?", event.name.rsplit("__", 1)[-1])) - 1 if triton else 2
    pointers = max(pointers - 1 if pointers > 2 else pointers, 2)  # of three, one is a bias or a weight
    return Kernel.of(
        "elementwise", GRID_DTYPE, operator="by_grid", sizing=Sizing.COUNTED, elements=n,
        read_bytes=2.0 * (pointers - 1) * n, write_bytes=2.0 * n,
    )  # fmt: skip


def _part(made: Kernel | None, tensors: list[TensorFact], event: Event) -> Kernel | None:
    """PyTorch halves what cannot be indexed with 32 bits until every part can be: a row is one part."""
    largest = max(tensor.bytes for tensor in tensors)
    ours = "at::native" in event.name
    if made is None or not ours or largest < INDEXABLE_BYTES or made.family not in SPLIT:
        return made
    parts = 2.0 ** ceil(log2(largest / INDEXABLE_BYTES))
    sizes = {key: value / parts if key in SPLIT[made.family] else value for key, value in made.dims}
    return replace(made, dims=tuple(sizes.items()))


def trace_layout(table: Table, at: IntArray) -> list[Rows]:
    """Rows with the columns op, input_dims, input_types, kernel (and grid, block) by family and dtype."""
    columns = [
        _text(table, key, at) for key in ("op", "input_dims", "input_types", "kernel", "grid", "block")
    ]
    kernels = [kernel_of_row(*row) for row in zip(*columns, strict=True)]
    return [
        Rows("", replace(batch, positions=at[batch.positions]), timed_by_events=False)
        for batch in batches(kernels)
    ]


def _text(table: Table, key: str, at: IntArray) -> list[str]:
    if key not in table:
        return ["[]"] * len(at)
    column = table[key]
    return [value if isinstance(value, str) else "[]" for value in (column[i] for i in at)]


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(text or "[]")))


def _unknown(op: str) -> Kernel:
    return Kernel.of("unsized", operator=op)
