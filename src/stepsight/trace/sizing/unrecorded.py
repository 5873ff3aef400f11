"""Sizes where a trace recorded no shapes: what the launch grid counts and the kernel's own name spells out.

PyTorch's element-wise kernels handle a known number of elements per block. Template parameters are compiled
in: a softmax that keeps a row in a warp's registers names the row's length, flash attention the head's width
and the queries of a block. Everything else is `Sizing.UNKNOWN`: such a kernel keeps its measured time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.launch_grid import GEMM, TILE, elements_by_grid, grid_blocks, is_elementwise
from stepsight.trace.sizing.precision import dtype_by_name
from stepsight.trace.sizing.sort_map import sort_kernel

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts

_CHUNK = 65536
"""Elements of a chunk in PyTorch's and apex's multi-tensor kernels."""
_ROW_KERNELS = (
    ("softmax_warp_backward", "softmax_backward"), ("SoftMaxBackward", "softmax_backward"),
    ("softmax", "softmax"), ("SoftMax", "softmax"), ("nll_loss_backward", "nll_loss_backward"),
    ("nll_loss_forward", "nll_loss"), ("layer_norm_grad", "layer_norm_backward"),
    ("GammaBetaBackward", "layer_norm_backward"), ("layer_norm", "layer_norm"), ("LayerNorm", "layer_norm"),
    ("bn_bw", "batch_norm_backward"), ("bn_fw", "batch_norm"),
)  # fmt: skip
"""Kernels that work on rows, by what their names hold; the rows' length does not show."""
_USUAL_ROW = 128
_WARP_SOFTMAX = re.compile(r"softmax_warp_(forward|backward)<(?:[^<>]*?,)?\s*(\d+)\s*[,>]")
"""The first number among the parameters is the binary logarithm of the row's length."""
_TWO_ROWS = 128
"""Rows of up to this many elements go two to a warp (PyTorch's softmax_warp kernels)."""
_FLASH = re.compile(
    r"Flash_(fwd|bwd)_kernel_traits<(\d+), (\d+), (\d+)[^>]*(?:>[^<>]*|<[^<>]*>)*?>\s*>?,\s*"
    r"(?:true|false|\(bool\)[01]),\s*(true|false|\(bool\)[01])"
)
"""Head width, queries per block, keys per block; after the traits: dropout or not, causal or not."""
_LOOKUP = re.compile(r"split_embedding\w*_(forward|backward)\w*<[^(]*?,\s*(\d+)(?:ul)?,\s*(\d+)(?:ul)?>\(")
"""FBGEMM's lookup kernels: vectors of four per thread and threads per row are their last parameters."""
_VECTOR = 4
_CAPPED_BLOCKS = 128
"""PyTorch caps a concatenation's blocks at a multiple of the multiprocessors: its grid hides its size."""
COUNTED, COMPILED = "spread_counted", "spread_compiled"
LEAST, LOOKUP, COLLECTIVE, UNKNOWN = "spread_least", "spread_lookup", "spread_collective", "spread_unknown"
"""Constants with the spread of ln(time) that each kind of inferred size adds."""
_BY_FAMILY = {
    **dict.fromkeys(("batch_norm", "batch_norm_backward"), "spread_batch_norm"),
    **dict.fromkeys(("attention", "attention_backward"), "spread_attention"),
    **dict.fromkeys(
        ("softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "nll_loss", "nll_loss_backward"),
        "spread_rows",
    ),
    **{family: f"spread_{family}" for family in ("reduce", "dropout", "scatter")},
}


def sized_by_grid(facts: Facts, call: Call | None, event: Event) -> Kernel:
    """A kernel by its grid and name: an estimate of its sizes, never of its time."""
    name = call.op.name if call else ""
    dtype = dtype_by_name(event.name) if not event.name.startswith("triton") else facts.dtype
    found = (
        sort_kernel(event, beside=call.kernels if call else (), gpu=facts.gpu)
        or _product(event, dtype)
        or _named(event, dtype, name)
        or _rows(event, dtype, name)
        or _counted(event, dtype, name)
    )
    return found or _streaming(event, dtype, name)


def _product(event: Event, dtype: str) -> Kernel | None:
    """A matrix product: its grid counts the tiles of the result, nothing counts what it sums over."""
    tile = _tile(event.name)
    if tile is None or not event.grid():
        return None
    across, down, depth = grid_blocks(event)
    return Kernel.of(
        "gemm", dtype, operator="mm", sizing=Sizing.UNKNOWN, batch=depth, m=down * tile[1],
        n=across * tile[0], k=RULES.value("unknown_k"),
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _tile(kernel: str) -> tuple[int, int] | None:
    """The tile that a product's name spells out."""
    tile = TILE.search(kernel)
    return (int(tile[1]), int(tile[2])) if tile and GEMM.search(kernel) else None


def _named(event: Event, dtype: str, name: str) -> Kernel | None:
    """Kernels whose names spell their sizes out."""
    lookup = _LOOKUP.search(event.name)
    if lookup:
        return _lookup(event, lookup)
    return _softmax(event, dtype, name) or _attention(event, dtype, name)


def _softmax(event: Event, dtype: str, name: str) -> Kernel | None:
    """A softmax whose rows live in registers."""
    found = _WARP_SOFTMAX.search(event.name)
    if found is None or not event.grid():
        return None
    cols = 2.0 ** int(found[2])
    warps = (*event.block(), 1, 1)[1]
    rows = float(prod(event.grid()) * warps * (2 if cols <= _TWO_ROWS else 1))
    family = "softmax_backward" if found[1] == "backward" else "softmax"
    return Kernel.of(family, dtype, operator=name, sizing=Sizing.NAMED, rows=rows, cols=cols)


def _attention(event: Event, dtype: str, name: str) -> Kernel | None:
    """Flash attention: a block takes some queries (backward: keys) of one head of one sample. Keys are
    taken to be as many as queries."""
    found = _FLASH.search(event.name)
    if found is None or len(event.grid()) < 3:
        return None
    forward = found[1] == "fwd"
    blocks, batch, heads = event.grid()[:3]
    length = float(blocks * int(found[3] if forward else found[4]))
    causal = float(found[5] in ("true", "(bool)1"))
    return Kernel.of(
        "attention" if forward else "attention_backward", dtype, operator=name, sizing=Sizing.NAMED,
        batch=batch, heads=heads, kv_heads=heads, q=length, kv=length,
        head_dim=float(found[2]), causal=causal,
    )  # fmt: skip


def _lookup(event: Event, found: re.Match[str]) -> Kernel:
    """A lookup by its bags (a warp each) and the widest row that its registers hold: at least one row per bag
    is read; how many more, and how many of those from cache, no grid shows."""
    bags = float(prod(event.grid() or (1,)) * (*event.block(), 1, 1)[1])
    elements = bags * _VECTOR * int(found[2]) * int(found[3])
    name = "lookup" if found[1] == "forward" else "lookup_backward"
    return Kernel.of(
        "elementwise", operator=name, sizing=Sizing.UNKNOWN, elements=elements, read_bytes=4 * elements,
        write_bytes=4 * elements,
    )  # fmt: skip


def _rows(event: Event, dtype: str, name: str) -> Kernel | None:
    """Kernels that reduce rows of unknown length."""
    elements = elements_by_grid(event)
    if "reduce_kernel" in event.name:
        return Kernel.of(
            "reduce", dtype, operator=name, sizing=Sizing.GRID, rows=max(elements / 64, 1), cols=64
        )
    if event.name.startswith("triton"):
        return None
    for word, family in _ROW_KERNELS:
        if word in event.name:
            rows = max(elements / _USUAL_ROW, 1)
            return Kernel.of(family, dtype, operator=name, sizing=Sizing.UNKNOWN, rows=rows, cols=_USUAL_ROW)
    return None


def _counted(event: Event, dtype: str, name: str) -> Kernel | None:
    """Kernels of PyTorch that are not element-wise but whose grids count their elements."""
    elements, width = elements_by_grid(event), _width(dtype)
    if "multi_tensor_apply" in event.name:
        return _multi_tensor(event, name)
    if "indexing_backward_kernel" in event.name:
        # A warp takes an index, the grid's depth counts what each index stands for.
        picks = float(prod(event.grid() or (1,)) * (*event.block(), 1, 1)[1])
        return Kernel.of(
            "scatter", dtype, operator="index_put", sizing=Sizing.GRID, rows=picks, cols=1, table_rows=picks
        )
    if "dropout_kernel" in event.name:
        return Kernel.of("dropout", dtype, operator=name, sizing=Sizing.COUNTED, elements=4 * elements)
    if "CatArray" in event.name:
        blocks, inputs = (*event.grid(), 1, 1)[:2]
        sizing = Sizing.UNKNOWN if blocks >= _CAPPED_BLOCKS else Sizing.COUNTED
        return Kernel.of(
            "concat", dtype, operator="aten::cat", sizing=sizing, read_bytes=elements * width,
            write_bytes=elements * width, inputs=float(max(inputs, 2)),
        )  # fmt: skip
    if "FillFunctor" in event.name:
        return Kernel.of("fill", dtype, operator=name, sizing=Sizing.COUNTED, bytes=elements * width)
    return None


def _multi_tensor(event: Event, name: str) -> Kernel:
    """A foreach or fused optimizer kernel: a block takes a chunk of one tensor of each list."""
    lists = re.search(r"TensorList\w*Metadata<(\d+)", event.name)
    depth = int(lists[1]) if lists else 2
    elements = float(prod(event.grid() or (1,)) * _CHUNK * RULES.value("chunk_filled"))
    return Kernel.of(
        "optimizer", operator=name, sizing=Sizing.COUNTED, elements=elements, read_bytes=4 * depth * elements,
        write_bytes=4 * max(depth - 1, 1) * elements, tensors=30,
    )  # fmt: skip


def _streaming(event: Event, dtype: str, name: str) -> Kernel:
    """Everything else streams what its grid covers; only element-wise grids count it."""
    elements = elements_by_grid(event)
    inputs = 2 if _binary(event.name) else 1
    read_width, write_width = _widths(name, event.name, _width(dtype))
    # Few threads are launch latency, unless they ran longer: persistent kernels loop over their work.
    short = event.dur <= RULES.value("latency_bound")
    latency = elements < RULES.value("few_elements") and short
    sizing = Sizing.COUNTED if is_elementwise(event) or latency else Sizing.UNKNOWN
    return Kernel.of(
        "elementwise", dtype, operator=name, sizing=sizing, elements=elements,
        read_bytes=inputs * elements * read_width, write_bytes=elements * write_width,
    )  # fmt: skip


def _width(dtype: str) -> int:
    return {"fp32": 4, "fp64": 8}.get(dtype, 2)


def _widths(op: str, kernel: str, width: int) -> tuple[int, int]:
    """Bytes of an element read and written: logic reads and comparisons write single bytes, and a
    cast is named by its result, mostly between four bytes and two."""
    call = op.split("::")[-1].rstrip("_")
    if "direct_copy" in kernel and "LoadWithCast" in kernel:
        return (2 if width == 4 else 4), width
    if call.startswith(("logical_", "bitwise_")):
        return 1, 1
    return (width, 1) if call in ("lt", "le", "gt", "ge", "eq", "ne", "isfinite", "isnan") else (width, width)


def _binary(name: str) -> bool:
    return (
        "BinaryFunctor" in name
        or "CUDAFunctor_add" in name
        or ("CUDAFunctorOnSelf" not in name and "Functor_add" in name)
    )


def size_spread(kernel: Kernel, event: Event) -> float:
    """Standard deviation of ln(time) from inferring a kernel's sizes alone.

    Measured on traces that record shapes, each kernel sized with and without them and both timed by the same
    models; `python -m lab fit traces` makes the figures.
    """
    return RULES.value(kind_of_guess(kernel, event))


def kind_of_guess(kernel: Kernel, event: Event) -> str:
    """How a kernel's sizes were inferred: the constant that says how far that may be off."""
    if kernel.family == "gemm":
        return UNKNOWN
    if kernel.family != "elementwise":
        return _BY_FAMILY.get(kernel.family, LEAST)
    if kernel.sizing is Sizing.COUNTED and is_elementwise(event):
        return COUNTED
    if event.name.startswith("triton"):
        return COMPILED
    return LOOKUP if kernel.operator.startswith("lookup") else UNKNOWN
