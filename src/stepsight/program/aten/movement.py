"""Copies, lookups, element-wise passes, sorts, and multi-tensor (foreach and fused) kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from stepsight.dtypes import dtype_bytes
from stepsight.program.aten.call import (
    MOST_FREQUENT,
    AtenCall,
    Precision,
    Sized,
    TensorFact,
    elements,
    is_contiguous,
    lists_of_tensors,
    read_bytes,
    size_bytes,
)
from stepsight.program.job import Kernel

SORTED_ABOVE = 3072
"""Longer index lists are sorted before their gradients are added (ATen/native/cuda/Embedding.cu)."""
DIGIT_BITS = 8
"""Bits that one pass of a radix sort looks at (cub)."""
ONE_BLOCK_ROW = 4096
"""The longest row that one block sorts (ATen/native/cuda/Sort.cpp)."""
TOPK_PASSES = 2
"""Assumed: a selection reads values digit by digit and writes next to nothing."""
_WITHOUT_SORTING = frozenset({"unique_consecutive", "histc"})


def pointwise_kernel(name: str, inputs: Sequence[Sized], out: Sized) -> Kernel:
    """One pass over the inputs, one write of the output."""
    return Kernel.of(
        "elementwise", out.dtype, operator=name, elements=max(elements(out), 1),
        read_bytes=sum(read_bytes(t) for t in inputs), write_bytes=size_bytes(out),
        indexed=int(computes_indices(inputs, out)),
    )  # fmt: skip


def computes_indices(inputs: Sequence[Sized], out: Sized) -> bool:
    """Whether an operand is broadcast or laid out unlike the result: the kernel then computes an index for
    every element instead of loading several at once. A single number is passed by value."""
    return any(elements(t) > 1 and (t.shape != out.shape or t.strides != out.strides) for t in inputs)


def copy_kernel(source: Sized, out: Sized, name: str = "copy") -> Kernel:
    """The kernel that copies ``source`` into a layout: a cast, a plain copy, or a transposing one."""
    if source.dtype != out.dtype:
        return pointwise_kernel("cast", (source,), out)
    if source.strides == out.strides or (is_contiguous(source) and is_contiguous(out)):
        return Kernel.of("copy_d2d", out.dtype, operator=name, bytes=size_bytes(out))
    return Kernel.of("transpose", out.dtype, operator=name, elements=elements(out))


def fill_kernel(x: Sized) -> Kernel:
    return Kernel.of("fill", x.dtype, bytes=size_bytes(x))


def concat_kernel(out: Sized, inputs: int) -> Kernel:
    size = size_bytes(out)
    return Kernel.of("concat", out.dtype, read_bytes=size, write_bytes=size, inputs=inputs)


def gather_kernel(weight: Sized, picked: int) -> Kernel:
    rows, cols = weight.shape[0], prod(weight.shape[1:])
    return Kernel.of("gather", weight.dtype, rows=picked, cols=cols, table_rows=rows)


def scatter_kernels(dtype: str, picked: int, cols: int, table_rows: int) -> list[Kernel]:
    """Gradients of picked rows added into a dense gradient; long index lists are sorted first, by all bits of
    a row number."""
    put = Kernel.of("scatter", dtype, rows=picked, cols=cols, table_rows=table_rows)
    return [Kernel.of("sort", "int64", elements=picked), put] if picked > SORTED_ABOVE else [put]


def packed_copy(call: AtenCall, precision: Precision) -> list[Kernel]:
    """FSDP's copies into and out of its flat buffers: everything moved once, in one kernel."""
    lists = list(lists_of_tensors(call))
    many = max(lists, key=len) if lists else (call.made_on_gpu or call.on_gpu)
    moved = float(sum(t.bytes for t in many))
    dtype = many[0].dtype if many else "fp32"
    return [Kernel.of("concat", dtype, read_bytes=moved, write_bytes=moved, inputs=max(len(many), 1))]


def block_diagonal(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Zeros, then a copy per block (ATen/native/TensorShape.cpp)."""
    blocks = [t for one in lists_of_tensors(call) for t in one]
    copies = [Kernel.of("transpose", t.dtype, operator="copy", elements=max(t.elements, 1)) for t in blocks]
    return [fill_kernel(call.made_on_gpu[0]), *copies]


def fourier(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A pass per transformed dimension (cuFFT: rows of up to some thousand values stay in shared memory), one
    more where results are normalised."""
    out = call.made_on_gpu[0]
    size = max(size_bytes(out), size_bytes(call.on_gpu[0]))
    passes = max(len(call.get("dim", (0,))), 1) + bool(call.get("normalization", 0))
    one = Kernel.of("elementwise", out.dtype, operator=call.name, elements=max(out.elements, 1),
                    read_bytes=size, write_bytes=size)  # fmt: skip
    return [one] * passes


def embedding_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Before torch 2.11 (pull request 172454) a thread per row adds up the partial sums of its run of sorted
    indices, one after the other; atomic additions since."""
    gradient, indices = call.arguments["grad_output"], call.arguments["indices"]
    rows = call.arguments["num_weights"]
    run = call.get(MOST_FREQUENT, 0) if precision.sums_in_turn and indices.elements > SORTED_ABOVE else 0
    *sorted_first, put = scatter_kernels(gradient.dtype, indices.elements, gradient.shape[-1], rows)
    return [*sorted_first, replace(put, dims=(*put.dims, ("run", run))) if run else put]


def picked(call: AtenCall, precision: Precision) -> list[Kernel]:
    """gather, index_select, index: what is picked is read and written, and the indices are read."""
    out = call.made_on_gpu[0]
    return [pointwise_kernel(call.name, (out, *call.on_gpu[1:]), out)]


def put(call: AtenCall, precision: Precision) -> list[Kernel]:
    """index_put: a plain write, or (accumulate) a sort and an addition by row."""
    values = call.arguments["values"]
    indices = [t for t in call.get("indices", ()) if isinstance(t, TensorFact) and t.device == "cuda"]
    target = call.on_gpu[0]
    if not call.get("accumulate", False):
        return [pointwise_kernel("index_put", (values, *indices), values if values.elements > 1 else target)]
    count = max((t.elements for t in indices), default=1)
    cols = max(values.elements // max(count, 1), 1)
    rows = max(target.elements // cols, 1)
    digits = ceil(max(rows - 1, 1).bit_length() / DIGIT_BITS)  # of the largest row number
    return _added_by_index("index_put", values.dtype, count, cols, rows, digits)


def _added_by_index(name: str, dtype: str, count: int, cols: int, rows: int, digits: int) -> list[Kernel]:
    """One number made of each index's parts, a sort by it, and what has the same index added up."""
    arithmetic = Kernel.of("elementwise", "int64", operator="index_arithmetic", elements=count,
                           read_bytes=16 * count, write_bytes=8 * count)  # fmt: skip
    added = Kernel.of("scatter", dtype, operator=name, rows=count, cols=cols, table_rows=rows)
    return [arithmetic] * 3 + [Kernel.of("sort", "int64", elements=count, passes=digits), added]


def coalesced(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A sparse tensor's values, those of equal indices added up."""
    values = call.on_gpu[0]
    count = max(values.shape[0], 1)
    return _added_by_index(call.name, values.dtype, count, max(values.elements // count, 1), count, 0)


def to_dense(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A sparse tensor's values among zeros."""
    values, out = call.on_gpu[0], call.made_on_gpu[0]
    return [fill_kernel(out), pointwise_kernel(call.name, (values,), values)]


def scattered(call: AtenCall, precision: Precision) -> list[Kernel]:
    """scatter, scatter_add, index_add: sources and indices read, targets read and written."""
    on_gpu = call.on_gpu
    indices = [t for t in on_gpu if t.dtype in ("int64", "int32")]
    source = call.arguments.get("src", call.arguments.get("source"))
    moved = source if isinstance(source, TensorFact) else (indices or on_gpu)[0]
    target = on_gpu[0]
    written = prod(moved.shape) * size_bytes(target) // max(elements(target), 1)
    kernel = Kernel.of(
        "elementwise", target.dtype, operator=call.name, elements=max(moved.elements, 1),
        read_bytes=size_bytes(moved) + sum(size_bytes(t) for t in indices) + written, write_bytes=written,
    )  # fmt: skip
    in_place = call.name.endswith("_")
    return [kernel] if in_place else [copy_kernel(target, target), kernel]


def sort(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Rows up to `ONE_BLOCK_ROW` are sorted by a block each, in one pass over memory; longer ones, and what
    is to be unique, digit by digit. ``topk`` selects, which reads the values several times."""
    x = call.on_gpu[0]
    row = x.shape[call.get("dim", 0 if call.name == "msort" else -1)] if x.shape else 1
    digits = 1 if row <= ONE_BLOCK_ROW or call.name in _WITHOUT_SORTING else 0
    if call.name in ("_unique2", "unique_dim"):
        digits = 0
    elif call.name == "topk":
        digits = TOPK_PASSES
    return [Kernel.of("sort", x.dtype, elements=max(x.elements, 1), passes=digits)]


def nonzero(call: AtenCall, precision: Precision) -> list[Kernel]:
    x = call.on_gpu[0]
    counted = Kernel.of("reduce", x.dtype, operator="count", rows=1, cols=max(x.elements, 1))
    return [counted, pointwise_kernel(call.name, (x,), (call.made_on_gpu or (x,))[0])]


def padded_gradient(call: AtenCall, precision: Precision) -> list[Kernel]:
    """slice_backward, select_backward: zeros, then the gradient copied into its place."""
    whole, part = call.made_on_gpu[0], call.on_gpu[0]
    if call.name == "slice_backward":
        return [fill_kernel(whole), copy_kernel(part, TensorFact(part.shape, part.dtype, whole.strides))]
    return [fill_kernel(whole), Kernel.of("transpose", part.dtype, operator="copy", elements=part.elements)]


# torch's multi-tensor launcher: 65,536 elements a chunk, 320 chunks a launch, and this many
# tensors a launch by the number of tensor lists (ATen/native/cuda/MultiTensorApply.cuh).
_CHUNK_ELEMENTS = 65536
_CHUNKS = 320
_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}

_FUSED_LISTS = {
    "_fused_adam_": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_adamw_": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_sgd_": ("self", "grads", "momentum_buffer_list"),
    "_fused_adagrad_": ("self", "grads", "state_sums"),
}
"""The tensor lists of fused optimizers as large as the parameters; gradients alone are only read."""
_READ_ONLY_RESULT = ("_foreach_norm", "_foreach_max")
"""Reductions: a number per tensor comes out."""


def launches(sizes: Sequence[int], lists: int) -> list[tuple[int, int]]:
    """How the multi-tensor launcher cuts tensors of these elements: (tensors, elements) of each launch."""
    cut: list[tuple[int, int]] = []
    tensors = chunks = held = 0
    most = _TENSORS[min(max(lists, 1), 5)]
    for i, size in enumerate(sizes):
        left = size
        tensors += 1
        while left > 0:
            take = min(left, (_CHUNKS - chunks) * _CHUNK_ELEMENTS)
            left -= take
            held += take
            chunks += -(-take // _CHUNK_ELEMENTS)
            last = i == len(sizes) - 1 and left == 0
            if chunks == _CHUNKS or (tensors == most and left == 0) or last:
                cut.append((tensors, held))
                tensors, chunks, held = (1 if left else 0), 0, 0
    return cut


def multi_tensor_kernels(
    name: str, tensors: Sequence[Sized], lists: int, read_bytes_each: float, write_bytes_each: float,
    dtype: str = "",
) -> list[Kernel]:  # fmt: skip
    """The launches of one pass over ``tensors``; bytes are those read and written for one element."""
    dtype = dtype or (tensors[0].dtype if tensors[0].dtype in ("fp16", "bf16") else "fp32")
    return [
        Kernel.of("optimizer", dtype, operator=name, elements=count, read_bytes=read_bytes_each * count,
                  write_bytes=write_bytes_each * count, tensors=held)
        for held, count in launches([elements(t) for t in tensors], lists)
    ]  # fmt: skip


def multi_tensor(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Any _foreach_, _fused_ or _amp_foreach_ call."""
    if call.name in _FUSED_LISTS:
        return _fused(call)
    lists = [list(one) for one in lists_of_tensors(call)]
    if not lists:
        return []
    first, in_place = lists[0], call.name.endswith("_")
    each = dtype_bytes(first[0].dtype)
    if call.name.startswith(_READ_ONLY_RESULT):
        passes = multi_tensor_kernels(call.name, first, 1, each, 0)
        return [*passes, Kernel.of("fill", "fp32", operator="cleanup", bytes=4 * len(first))]
    if call.name == "_foreach_zero_":
        return multi_tensor_kernels(call.name, first, 1, 0, each)
    same = [one for one in lists if one[0].elements > 1 or first[0].elements <= 1]
    read = float(sum(dtype_bytes(one[0].dtype) for one in same))
    if call.name == "_foreach_copy_":
        return multi_tensor_kernels(call.name, first, 2, float(dtype_bytes(lists[-1][0].dtype)), each)
    return multi_tensor_kernels(call.name, first, len(same) + (not in_place), read, each)


def _fused(call: AtenCall) -> list[Kernel]:
    names = _FUSED_LISTS[call.name]
    held = [list(call.arguments.get(name) or ()) for name in names]
    lists = [[t for t in one if isinstance(t, TensorFact)] for one in held]
    lists = [one for one in lists if one]
    if not lists:
        return []
    read = float(sum(dtype_bytes(one[0].dtype) for one in lists))
    write = read - dtype_bytes(lists[1][0].dtype)
    return multi_tensor_kernels(call.name, lists[0], len(lists), read, write)
