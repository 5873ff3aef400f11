"""Element-wise, reducing, normalising, gathering and attention kernels of a trace, by operator."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import prod

from stepsight.program.job import Kernel
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.launch_grid import elements_by_grid
from stepsight.trace.sizing.sort_map import sort_kernel
from stepsight.trace.sizing.tensors import Tensor, positional

_UNARY = frozenset(
    {"exp", "log", "tanh", "sqrt", "rsqrt", "neg", "abs", "sigmoid", "relu", "gelu", "silu", "cos", "sin",
     "reciprocal", "sign", "floor", "ceil", "erf", "bitwise_not", "logical_not",
     "clamp", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_"}
)  # fmt: skip
"""Functions of one tensor."""
_INDEX_BYTES = 8
"""Where a maximum was found, or a sorted value came from, is kept as a 64-bit number."""

_IN_PART = re.compile(r"slice|split|select|embedding|index")
"""What Inductor names fused kernels by when they read or write a part of a tensor."""

Rule = Callable[[Event, list[Tensor], Event], Kernel]


def vector_kernel(op: Event, tensors: list[Tensor], event: Event) -> Kernel | None:
    """The kernel by the operator's rule; None for an operator that no rule knows."""
    if op.args.kernel_backend == "triton" or event.name.startswith("triton"):
        return streamed(op, tensors, event)
    rule = _rule_of(op.name, event.name)
    if rule is not None:
        return rule(op, tensors, event)
    if op.name.startswith("aten::") or "elementwise" in event.name:
        return _elementwise(op, tensors, event)
    return None


def describes(op: Event, event: Event) -> bool:
    """Whether operator and kernel are of one known kind, so that the kernel is what the operator is for."""
    return _of_one_kind(op.name, event.name)


@lru_cache(maxsize=8192)
def _of_one_kind(op: str, kernel: str) -> bool:
    name = op.split("::")[-1]
    return any(pattern.search(name) and pattern.search(kernel) for pattern, _ in _RULES)


@lru_cache(maxsize=8192)
def _rule_of(op: str, kernel: str) -> Rule | None:
    """The first rule that knows the operator or the kernel: layers and steps repeat the same few pairs."""
    name = op.split("::")[-1]
    return next((rule for pattern, rule in _RULES if pattern.search(name) or pattern.search(kernel)), None)


def _rows_cols(t: Tensor) -> tuple[int, int]:
    """Rows and columns with the last axis as columns."""
    return (prod(t.shape[:-1]), t.shape[-1]) if t.shape else (1, 1)


def _matrix(family: str) -> Rule:
    def rule(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
        rows, cols = _rows_cols(max(tensors, key=lambda t: t.elements))
        return Kernel.of(family, tensors[0].dtype, operator=op.name, rows=rows, cols=cols)

    return rule


def _batch_norm(family: str) -> Rule:
    def rule(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
        largest = max(tensors, key=lambda t: t.elements)
        channels = largest.shape[1] if len(largest.shape) > 1 else 1
        return Kernel.of(
            family, largest.dtype, operator=op.name, rows=largest.elements // max(channels, 1), cols=channels
        )

    return rule


def _reduce(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    source = max(tensors, key=lambda t: t.elements)
    axes = _axes(op, len(source.shape))
    kept = prod(s for i, s in enumerate(source.shape) if i not in axes)
    rows = max(kept, 1)
    return Kernel.of(
        "reduce", source.dtype, operator=op.name, rows=rows, cols=max(source.elements // rows, 1)
    )


def _axes(op: Event, ndim: int) -> set[int]:
    """The reduced axes, where the trace has them; else the leading ones, as a bias gradient does."""
    for text in op.concrete()[1:3]:
        if isinstance(text, str) and re.fullmatch(r"\[?-?\d+(, -?\d+)*\]?", text):
            return {int(x) % max(ndim, 1) for x in re.findall(r"-?\d+", text)}
    return set(range(max(ndim - 1, 0))) if ndim > 1 else {0}


def _dropout(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    return Kernel.of("dropout", tensors[0].dtype, operator=op.name, elements=tensors[0].elements)


def _gather(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    table = tensors[0]
    rows_of_table, cols = (table.shape[0], prod(table.shape[1:])) if table.shape else (1, 1)
    picks = [t for t in tensors[1:] if t.dtype.startswith("int")]
    rows = max((t.elements for t in picks), default=0) or elements_by_grid(event) / max(cols, 1)
    return Kernel.of(
        "gather", table.dtype, operator=op.name, rows=max(rows, 1.0), cols=cols, table_rows=rows_of_table
    )


def _scatter(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    rows, cols = _rows_cols(max(tensors, key=lambda t: t.elements))
    return Kernel.of("scatter", tensors[0].dtype, operator=op.name, rows=rows, cols=cols, table_rows=rows)


def _concat(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    size = float(sum(t.bytes for t in tensors))
    return Kernel.of(
        "concat", tensors[0].dtype, operator=op.name, read_bytes=size, write_bytes=size, inputs=len(tensors)
    )


def _moved(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """Pooled embeddings put into another order: all are read and written once."""
    whole = max(tensors, key=lambda t: t.bytes)
    return Kernel.of(
        "elementwise", whole.dtype, operator=op.name, elements=max(whole.elements, 1), read_bytes=whole.bytes,
        write_bytes=whole.bytes,
    )  # fmt: skip


def _sort(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """One kernel of a sort: by its grid where it is cub's, else a pass over the largest list of integers."""
    made = sort_kernel(event, op, tensors)
    if made:
        return made
    keys = max(
        (t for t in tensors if t.dtype.startswith("int")), key=lambda t: t.elements, default=tensors[0]
    )
    moved = float(keys.bytes + _INDEX_BYTES * keys.elements)
    return Kernel.of(
        "sort_pass", keys.dtype, operator=op.name, elements=keys.elements, read_bytes=moved, write_bytes=moved
    )


def _optimizer(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """A foreach kernel reads every list it is given and writes the first."""
    total = float(sum(t.bytes for t in tensors))
    width = 4 if tensors[0].dtype == "fp32" else 2
    lists = max(_lists(op), 1)
    elements = total / width / lists
    return Kernel.of(
        "optimizer", tensors[0].dtype, operator=op.name, elements=elements, read_bytes=total,
        write_bytes=total / lists, tensors=len(tensors) / lists,
    )  # fmt: skip


def _lists(op: Event) -> int:
    return sum(1 for s in op.shapes() if isinstance(s, list) and s and isinstance(s[0], list))


def _attention(family: str) -> Rule:
    def rule(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
        shaped = [t for t in tensors if len(t.shape) >= 3 and t.dtype in ("fp16", "bf16", "fp32")]
        if len(shaped) < 2:
            return _elementwise(op, tensors, event)
        if re.search(r"Preprocess|Postprocess|ConvertdQ|dot_do_o|convert_dq|combine", event.name):
            return streamed(op, shaped[:2], event)
        if "prepare" in event.name:
            return Kernel.of("fill", operator="attention_schedule", bytes=4.0 * tensors[-1].elements)
        backward = family == "attention_backward"
        q, k = (shaped[1], shaped[2]) if backward and len(shaped) > 2 else (shaped[0], shaped[1])
        return _attention_dims(family, op, tensors, q, k)

    return rule


def _attention_dims(family: str, op: Event, tensors: list[Tensor], q: Tensor, k: Tensor) -> Kernel:
    """[B, H, S, D] as torch has it, [B, S, H, D] as flash-attn has it, [tokens, H, D] if packed."""
    window = _window(op)
    if len(q.shape) == 3:
        tokens, heads, dim = q.shape
        limits = next((t.elements for t in tensors if t.dtype.startswith("int") and len(t.shape) == 1), 2)
        batch = max(limits - 1, 1)
        length = tokens / batch
        return Kernel.of(
            family, q.dtype, operator=op.name, batch=batch, heads=heads, kv_heads=k.shape[1], q=length,
            kv=length, head_dim=dim, causal=1.0, window=float(window or 0),
        )  # fmt: skip
    torch_order = "scaled_dot_product" in op.name
    b, x, y, dim = q.shape
    heads, length = (x, y) if torch_order else (y, x)
    kv_heads, kv = (k.shape[1], k.shape[2]) if torch_order else (k.shape[2], k.shape[1])
    return Kernel.of(
        family, q.dtype, operator=op.name, batch=b, heads=heads, kv_heads=kv_heads, q=length, kv=kv,
        head_dim=dim, causal=1.0 if "True" in op.concrete() else 0.0,
    )  # fmt: skip


def _window(op: Event) -> int | None:
    """The sliding window of a flash-attn call: the number after its ``causal`` flag."""
    texts = [str(x) for x in op.concrete()]
    for flag, size in pairwise(texts):
        if flag in ("True", "False") and size.isdigit() and int(size) > 0:
            return int(size)
    return None


def _pool(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """A pooled image. A forward's result is not recorded: windows are taken to halve height and width."""
    image = max(tensors, key=lambda t: t.elements)
    whole = image.elements == min(t.elements for t in tensors) and "adaptive" in op.name
    pooled = min(t.elements for t in tensors) if len(tensors) > 1 else image.elements // (1 if whole else 4)
    width = max(image.bytes // max(image.elements, 1), 1)
    result = float(pooled * (width + (_INDEX_BYTES if "with_indices" in op.name else 0)))
    backward = "backward" in op.name
    reads, writes = (result, float(image.bytes)) if backward else (float(image.bytes), result)
    return Kernel.of(
        "pool", image.dtype, operator=op.name, elements=max(image.elements if backward else pooled, 1),
        read_bytes=reads, write_bytes=max(writes, 1.0),
    )  # fmt: skip


def _nll(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    rows, cols = _rows_cols(max(tensors, key=lambda t: t.elements))
    family = "nll_loss_backward" if "backward" in op.name else "nll_loss"
    return Kernel.of(family, tensors[0].dtype, operator=op.name, rows=rows, cols=cols)


def _fill(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    return Kernel.of("fill", tensors[0].dtype, operator=op.name, bytes=max(tensors[0].bytes, 1))


def _copy_kernel(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """aten::copy_(dst, src): a cast or a strided copy."""
    source = tensors[1] if len(tensors) > 1 else tensors[0]
    strided = source.dtype == tensors[0].dtype and "elementwise_kernel" in event.name
    if strided and "vectorized" not in event.name and "unrolled" not in event.name:
        return Kernel.of("transpose", source.dtype, operator=op.name, elements=max(source.elements, 1))
    name = "cast" if source.dtype != tensors[0].dtype else op.name
    return Kernel.of(
        "elementwise", source.dtype, operator=name, elements=max(source.elements, 1),
        read_bytes=source.bytes, write_bytes=tensors[0].bytes,
    )  # fmt: skip


def streamed(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """Everything listed is touched once: inputs and outputs alike (Triton lists both)."""
    if _IN_PART.search(op.name):
        tensors = _cut(tensors)
    total = float(sum(t.bytes for t in tensors))
    largest = max(tensors, key=lambda t: t.bytes)
    written = float(largest.bytes) if len(tensors) > 1 else 0.0
    return Kernel.of(
        "elementwise", largest.dtype, operator=op.name, elements=max(largest.elements, 1),
        read_bytes=total - written, write_bytes=max(written, 1.0),
    )  # fmt: skip


def _cut(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of which a kernel picks or slices a part, no larger than those it passes over whole: the
    largest size that two of them share, else that of the last, which it writes."""
    sizes = [t.elements for t in tensors]
    shared = [n for n in sizes if sizes.count(n) > 1]
    most = max(shared, default=sizes[-1]) or 1
    return [t if t.elements <= most else Tensor((most,), t.dtype) for t in tensors]


def _elementwise(op: Event, tensors: list[Tensor], event: Event) -> Kernel:
    """Inputs are read once, a result of the broadcast size is written."""
    inputs = [t for t in positional(op) if t is not None] or tensors
    if len(inputs) == 2 and inputs[0] == inputs[1] and op.name.split("::")[-1] in _UNARY:
        inputs = inputs[:1]  # the second is where the result goes
    result = max(inputs, key=lambda t: t.elements)
    elements = max(_broadcast(inputs), 1)
    if elements > 4 * result.elements and elements > 2 * elements_by_grid(event):
        elements = max(result.elements, 1)  # not a broadcast: the inputs only happen to differ
    width = max(result.bytes // max(result.elements, 1), 1)
    outs = 1 if op.name.endswith("_") or "out" in op.name else _outputs(op)
    return Kernel.of(
        "elementwise", result.dtype, operator=op.name, elements=elements,
        read_bytes=float(sum(t.bytes for t in inputs)), write_bytes=float(elements * width * outs),
        indexed=int(_computes_indices(event)),
    )  # fmt: skip


def _computes_indices(event: Event) -> bool:
    """PyTorch's kernel for broadcast or strided operands: ``elementwise_kernel`` with no word before it."""
    return _names_strides(event.name)


@lru_cache(maxsize=8192)
def _names_strides(kernel: str) -> bool:
    return re.search(r"(?<![a-z]_)elementwise_kernel(_manual_unroll)?<", kernel) is not None


def _outputs(op: Event) -> int:
    return 2 if op.name.endswith(("_backward", "Backward")) and "mul" in op.name.lower() else 1


def _broadcast(tensors: list[Tensor]) -> int:
    longest = max((len(t.shape) for t in tensors), default=0)
    size = 1
    for axis in range(1, longest + 1):
        size *= max((t.shape[-axis] for t in tensors if len(t.shape) >= axis), default=1)
    return size


_RULES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (re.compile(r"multi_tensor_apply|_foreach_|_fused_adam|_fused_sgd"), _optimizer),
    (re.compile(r"(flash_attn|scaled_dot_product|efficient_attention|fmha|flash_attention).*(bwd|backward)"
                r"|flash_bwd|fmha_cutlassB|FlashAttnBwd"), _attention("attention_backward")),
    (re.compile(r"flash_attn|scaled_dot_product|efficient_attention|fmha|flash_attention|flash_fwd"),
     _attention("attention")),
    (re.compile(r"^_?(adaptive_)?(max|avg)_pool\dd"), _pool),
    (re.compile(r"CatArray|^_?cat$|^stack$"), _concat),
    (re.compile(r"permute_pooled_embs|recat_embedding"), _moved),
    (re.compile(r"RadixSort|^sort$|DeviceMergeSort|^unique"), _sort),
    (re.compile(r"softmax.*backward|SoftmaxBackward|softmax_warp_backward"), _matrix("softmax_backward")),
    (re.compile(r"[sS]oftmax"), _matrix("softmax")),
    (re.compile(r"GammaBetaBackward|ComputePartGrad|ComputeGradGammaBeta"), _matrix("layer_norm_weights")),
    (re.compile(r"layer_norm_backward|LayerNorm.*Backward"),
     _matrix("layer_norm_backward")),
    (re.compile(r"layer_norm|LayerNorm|rms_norm"), _matrix("layer_norm")),
    (re.compile(r"batch_norm_backward|bn_bw|BatchNorm\w*Backward"), _batch_norm("batch_norm_backward")),
    (re.compile(r"batch_norm|bn_fw"), _batch_norm("batch_norm")),
    (re.compile(r"fused_dropout|native_dropout$"), _dropout),
    (re.compile(r"nll_loss"), _nll),
    (re.compile(r"^(embedding|index_select|index|gather)$"), _gather),
    (re.compile(r"index_put|embedding_dense_backward|scatter|index_add|embedding_backward"), _scatter),
    (re.compile(r"^(fill_|zero_|zeros|ones)$|FillFunctor"), _fill),
    (re.compile(r"^(copy_|_to_copy|to|clone|contiguous)$"), _copy_kernel),
    (re.compile(r"reduce_kernel|^(sum|mean|amax|max|min|norm|prod|any|all)$"), _reduce),
)  # fmt: skip
