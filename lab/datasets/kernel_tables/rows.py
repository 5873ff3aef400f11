"""Tables of kernels: which family and sizes a row means, whatever the columns are called.

Known are the layouts of the measured tables (GEMM ``op B M N K``, vector ``op B H``, conv2d,
bf16/fp8 GEMM ``m n k gemm_dtype``, attention ``batch_size isl num_heads …``, trace kernels ``op
input_dims input_types kernel``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.columns import Batch, complete, kinds
from stepsight.prediction.kernel_times import Table, numbers

DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
    "fp8_e4m3": "fp8", "fp8_block": "fp8",
}  # fmt: skip

BINARY = ("add", "mul", "div", "pow", "sub")
"""Vector ops on two tensors; with a ``u`` after the name one of them is a scalar."""

EVENT_TIMED_BOARDS = {"V100": "V100-PCIE-32G", "A100-40G": "A100-PCIE-40G", "A100-80G": "A100-PCIE-80G"}
"""Boards of the short names of the event-timed tables: those of nlp_fp32.csv, the same authors'
(the V100 table peaks at 13.4 TFLOP/s, 0.96 of the PCIe board's 14.0)."""

DTYPE_COLUMNS = ("dtype", "gemm_dtype", "attn_dtype", "precision")
GPU_COLUMNS = ("gpu", "device", "system")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table that are of one family and dtype on one GPU.

    ``timed_by_events``: the layout belongs to tables in which CUDA events around the operator
    took the time, so a comparable reading includes what the events add.
    ``stacks`` is the software stack each row names, where the layout has it; ``operators`` the table's own
    name of each row's operator.
    """

    gpu: str
    batch: Batch
    timed_by_events: bool
    stacks: Sequence[str] | None = None
    operators: Sequence[str] = ()


def rows_of(table: Table, where: str = "table") -> list[Rows]:
    """Sort a table into rows by layout, GPU, family and dtype."""
    column = next((key for key in GPU_COLUMNS if key in table), None)
    if column is None:
        raise InputError(where, "no column gpu", "add one")
    gpus = [str(value) for value in table[column]]
    layout = _layout(table, where)
    found: list[Rows] = []
    groups: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(zip(gpus, _dtypes(table, len(gpus)), strict=True)):
        groups.setdefault(key, []).append(i)
    for (name, _), positions in groups.items():
        for rows in layout(table, np.array(positions), where):
            board = EVENT_TIMED_BOARDS.get(name, name) if rows.timed_by_events else name
            found.append(replace(rows, gpu=board))
    return found


Layout = Callable[[Table, IntArray, str], list[Rows]]


def _layout(table: Table, where: str) -> Layout:
    columns = set(table)
    for needed, layout in _LAYOUTS:
        if needed <= columns:
            return layout
    raise InputError(
        where,
        f"columns {', '.join(sorted(columns))} are no known layout",
        "add its layout to lab/datasets/kernel_tables/rows.py",
    )


def _words(table: Table, key: str, at: IntArray) -> list[str]:
    column = table[key]
    return [str(column[i]) for i in at]


def _rows(
    family: str, dtype: str, dims: Mapping[str, FloatArray], names: Sequence[str], at: IntArray,
    events: bool, stacks: Sequence[str] | None = None,
) -> Rows:  # fmt: skip
    of = kinds(family, names, len(at))
    batch = Batch(family, dtype, complete(family, dtype, dims, len(at)), of, at)
    return Rows("", batch, events, stacks, names)


def _gemm(table: Table, at: IntArray, where: str) -> list[Rows]:
    keys = {"batch": "B", "m": "M", "n": "K", "k": "N"}  # this layout's N is the reduction: Linear(N, K)
    dims = {key: numbers(table, column, at, where) for key, column in keys.items()}
    return [_rows("gemm", _dtype(table, at), dims, _words(table, "op", at), at, True)]


def _dtypes(table: Table, n: int) -> list[str]:
    """Each row's dtype in our words; "" where the layout's own default holds."""
    for key in DTYPE_COLUMNS:
        if key in table:
            return [DTYPES.get(str(value).lower(), str(value).lower()) for value in table[key]]
    return [""] * n


def _dtype(table: Table, at: IntArray, default: str = "fp32") -> str:
    """The dtype of rows that share one."""
    for key in DTYPE_COLUMNS:
        if key in table and len(at):
            given = str(table[key][at[0]]).lower()
            return DTYPES.get(given, given)
    return default


def vector_batch(op: str, rows: FloatArray, cols: FloatArray, dtype: str, at: IntArray) -> Batch:
    """A vector op of the tables (``add``, ``addu``, ``gelu``, ``softmax``, ``ln`` …) as its family."""
    family = {"softmax": "softmax", "ln": "layer_norm", "layer_norm": "layer_norm"}.get(op, "elementwise")
    if family != "elementwise":
        return Batch(family, dtype, {"rows": rows, "cols": cols}, kinds(family, op, len(at)), at)
    elements = rows * cols
    width = 4.0 if dtype == "fp32" else 2.0
    reads = 2.0 if op in BINARY else 1.0
    dims = {"elements": elements, "read_bytes": reads * width * elements, "write_bytes": width * elements}
    return Batch(family, dtype, dims, kinds(family, op, len(at)), at)


def _vector(table: Table, at: IntArray, where: str) -> list[Rows]:
    ops = np.array(_words(table, "op", at))
    rows, cols = numbers(table, "B", at, where), numbers(table, "H", at, where)
    found = []
    for op in dict.fromkeys(ops.tolist()):
        mine = ops == op
        batch = vector_batch(op, rows[mine], cols[mine], _dtype(table, at), at[mine])
        found.append(Rows("", batch, True, None, [op] * len(batch)))
    return found


def _conv(table: Table, at: IntArray, where: str) -> list[Rows]:
    window = "Kernel_Szie" if "Kernel_Szie" in table else "Kernel_Size"  # the measured table misspells it
    keys = {
        "batch": "B", "c_in": "Input_Channel", "c_out": "Output_Channel", "kh": window,
        "h": "Input_Size", "stride": "Stride", "padding": "Padding",
    }  # fmt: skip
    dims = {key: numbers(table, column, at, where) for key, column in keys.items()}
    return [_rows("conv", _dtype(table, at), dims, ["conv"] * len(at), at, True)]


def _serving_gemm(table: Table, at: IntArray, where: str) -> list[Rows]:
    dims = {key: numbers(table, key, at, where) for key in ("m", "n", "k")}
    for key in ("batch", "b"):
        if key in table:
            dims["batch"] = numbers(table, key, at, where)
    names = _words(table, "op", at) if "op" in table else ["linear"] * len(at)
    stacks = _words(table, "framework", at) if "framework" in table else None
    return [_rows("gemm", _dtype(table, at, "bf16"), dims, names, at, False, stacks)]


def _serving_attention(table: Table, at: IntArray, where: str) -> list[Rows]:
    keys = {
        "batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads",
        "q": "isl", "kv": "isl", "head_dim": "head_dim",
    }  # fmt: skip
    dims = {key: numbers(table, column, at, where) for key, column in keys.items() if column in table}
    if "step" in table:  # tokens already in the cache before this chunk
        dims["kv"] = dims["kv"] + numbers(table, "step", at, where)
    names = _words(table, "op_name", at) if "op_name" in table else ["context_attention"] * len(at)
    dims["causal"] = np.array([0.0 if "encoder" in name else 1.0 for name in names])
    decoding = np.array(["generation" in name for name in names])
    dims["q"] = np.where(decoding, 1.0, dims["q"])
    if "window_size" in table:  # every query sees at most this many keys
        window = numbers(table, "window_size", at, where)
        narrow = (window > 0) & (window < dims["kv"])
        dims["kv"] = np.where(narrow, window, dims["kv"])
        dims["causal"] = np.where(narrow | decoding, 0.0, dims["causal"])
    dtype = _dtype(table, at, "bf16")
    stacks = _words(table, "framework", at) if "framework" in table else None
    return [_rows("attention", dtype, dims, names, at, False, stacks)]


def _trace(table: Table, at: IntArray, where: str) -> list[Rows]:
    from lab.datasets.kernel_tables.trace_rows import trace_layout

    return trace_layout(table, at)


_LAYOUTS: tuple[tuple[set[str], Layout], ...] = (
    ({"Input_Channel", "Output_Channel", "Input_Size"}, _conv),
    ({"op", "input_dims", "input_types", "kernel"}, _trace),
    ({"op", "B", "M", "N", "K"}, _gemm),
    ({"op", "B", "H"}, _vector),
    ({"m", "n", "k"}, _serving_gemm),
    ({"batch_size", "isl", "num_heads", "head_dim"}, _serving_attention),
)
