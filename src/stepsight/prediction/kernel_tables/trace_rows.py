"""Rows of profiler traces (operator, input sizes, kernel) as kernels the models can time.

The same rules read a whole trace (``stepsight.trace``); here they meet one row at a time.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from stepsight.estimate import IntArray
from stepsight.kernels.columns import batches
from stepsight.prediction.kernel_tables.rows import Rows, Table
from stepsight.program.job import Kernel
from stepsight.trace.reading.events import Args, Event
from stepsight.trace.sizing.convolutions import convolution_of_row
from stepsight.trace.sizing.matmul_map import GEMM_KERNEL, GEMM_OPS, gemm_kernel
from stepsight.trace.sizing.tensors import tensors_of
from stepsight.trace.sizing.vector_map import vector_kernel

_SPACED = {"longint": "long int", "unsignedchar": "unsigned char", "signedchar": "signed char"}
"""Type names that lost their blank in flat files."""


def kernel_of_row(op: str, dims: str, types: str, kernel: str, grid: str = "[]", block: str = "[]") -> Kernel:
    """The family and sizes of one launched kernel; ``other`` where no rule knows the operator."""
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
        return _unknown(op)
    made = None
    if GEMM_KERNEL.search(kernel) or op.split("::")[-1] in GEMM_OPS:
        made = gemm_kernel(call, event) or convolution_of_row(call, event)
    return made or vector_kernel(call, tensors, event) or _unknown(op)


def trace_layout(table: Table, at: IntArray, where: str) -> list[Rows]:
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
    return Kernel.of("unsized", name=op)
