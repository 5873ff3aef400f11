"""What a kernel's name and launch grid state by themselves: its kind, its type, how many elements it covers.

PyTorch's element-wise kernels handle a known number of elements per block. Template parameters are compiled
in: a softmax that keeps a row in a warp's registers names the row's length, flash attention the head's width
and the queries of a block. Nothing else is read off a grid: a kernel whose sizes nothing states keeps its
measured time.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from math import prod

import msgspec

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel, Sizing
from stepsight.trace.events import NO_RAW, Event
from stepsight.trace.link import LinkedTrace

PRODUCT, STREAM = "product", "stream"
"""Matrix products and convolutions with their helpers; kernels that pass over memory once."""
_KINDS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern), tuple(kinds.split()))
    for pattern, kinds in (
        (r"multi_tensor_apply", "optimizer"),
        (r"(?i)(flash|fmha|attn|attention).*(bwd|backward|cutlassB)|fmha_dgrad", "attention_backward"),
        (r"(?i)flash_|fmha|FlashAttn|attention", "attention"),
        (r"(?i)gemm|gemv|Cijk|nvjet|cutlass|xmma|s884|s1688|s16816|cublas|dot_kernel|wgrad|dgrad"
         r"|implicit_convolve|winograd|cudnn.*conv|convolve|MIOpen.*Conv|naive_conv|splitK", PRODUCT),
        (r"RadixSort|DeviceMergeSort|bitonicSort|sort_by_key", "sort"),
        (r"CatArray", "concat"),
        (r"(?i)softmax.*backward", "softmax_backward"),
        (r"(?i)softmax", "softmax"),
        (r"GammaBetaBackward|ComputePartGrad|ComputeGradGammaBeta", "layer_norm_weights"),
        (r"(?i)layer_?norm.*(grad|backward)|rms_?norm.*backward", "layer_norm_backward"),
        (r"(?i)layer_?norm|rms_?norm", "layer_norm"),
        (r"(?i)batch_?norm\w*backward|bn_bw", "batch_norm_backward"),
        (r"(?i)batch_?norm|bn_fw", "batch_norm"),
        (r"nll_loss_backward", "nll_loss_backward"),
        (r"nll_loss", "nll_loss"),
        (r"dropout", "dropout"),
        (r"reduce_kernel", "reduce"),
        (r"indexing_backward|embedding_backward|compute_grad_weight", "scatter"),
        (r"indexSelect|gather_kernel", "gather stream"),
        (r"pool", "pool"),
        (r"FillFunctor", "fill"),
        (r"elementwise", STREAM),
    )
)  # fmt: skip
"""Kinds of kernel by what their names hold; the first that fits."""
_OF_FAMILY = {
    **dict.fromkeys(("gemm", "conv", "conv_dgrad", "conv_wgrad"), PRODUCT),
    **dict.fromkeys(("elementwise", "copy_d2d", "transpose", "other"), STREAM),
}
_TENSOR_CORE_FP32 = re.compile(r"tf32|s1688|s16816|tensorop_s|xf32", re.IGNORECASE)
_STRIDED = re.compile(r"(?<![a-z]_)elementwise_kernel(_manual_unroll)?<")
_WORK_PER_BLOCK = re.compile(r"elementwise_kernel<(\d+),\s*(\d+)")
_TENSILE = re.compile(r"^Cijk_\w+?_\w+?_([A-Z0-9]+)_")
"""Products of AMD's Tensile: letters after the order of indices are the types of inputs, result and sum."""
_TENSILE_TYPES = {"B": "bf16", "H": "fp16", "F8": "fp8", "X": "tf32", "S": "fp32"}
_WARP_SOFTMAX = re.compile(r"softmax_warp_(forward|backward)<(?:[^<>]*?,)?\s*(\d+)\s*[,>]")
"""The first number among the parameters is the binary logarithm of the row's length."""
_TWO_ROWS = 128
"""Rows of up to this many elements go two to a warp (PyTorch's softmax_warp kernels)."""
_FLASH = re.compile(
    r"Flash_(fwd|bwd)_kernel_traits<(\d+), (\d+), (\d+)[^>]*(?:>[^<>]*|<[^<>]*>)*?>\s*>?,\s*"
    r"(?:true|false|\(bool\)[01]),\s*(true|false|\(bool\)[01])"
)
"""Head width, queries per block, keys per block; after the traits: dropout or not, causal or not."""
_CHUNK = 65536
"""Elements of a chunk in PyTorch's and apex's multi-tensor kernels."""
_FILLED = 0.75
"""A tensor's last chunk is half full on average, and most tensors have one to four."""
_LARGE_PRODUCT, _LARGE_STREAM = 2048.0, 2.0**24
"""A side of a product, and elements of a copy, that fill any GPU."""


@lru_cache(maxsize=8192)
def kinds_of(kernel: str) -> tuple[str, ...]:
    """What kinds of work a kernel may do by its name; none where it says nothing."""
    return next((kinds for pattern, kinds in _KINDS if pattern.search(kernel)), ())


def kind_of_family(family: str) -> str:
    """The kind of work of a family."""
    return _OF_FAMILY.get(family, family)


@lru_cache(maxsize=8192)
def short_name(kernel: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    name = re.sub(r"^void\s+", "", kernel).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0][:80]


@lru_cache(maxsize=8192)
def on_tensor_cores(kernel: str) -> bool:
    """Whether a product of fp32 data runs on tensor cores."""
    return _TENSOR_CORE_FP32.search(kernel) is not None


@lru_cache(maxsize=8192)
def computes_indices(kernel: str) -> bool:
    """PyTorch's kernel for broadcast or strided operands: ``elementwise_kernel`` with no word before it."""
    return _STRIDED.search(kernel) is not None


@lru_cache(maxsize=8192)
def dtype_by_name(name: str) -> str:
    """The type a kernel computes in, fp32 where its name says none."""
    tensile = _TENSILE.match(name)
    if tensile:
        return next((kind for code, kind in _TENSILE_TYPES.items() if tensile[1].startswith(code)), "fp32")
    if name.startswith(("nvjet_q", "nvjet_r")):
        return "fp8"
    if "bf16" in name or "BFloat16" in name or "bfloat16" in name:
        return "bf16"
    if "Half" in name or "fp16" in name or "f16" in name or "h884" in name or name.startswith("nvjet_h"):
        return "fp16"
    if name.startswith("nvjet_t"):
        return "bf16"
    return "tf32" if "s1688" in name or "tf32" in name else "fp32"


def common_dtype(linked: LinkedTrace) -> str:
    """What the trace's matrix products compute in: its other kernels mostly stream the same."""
    names = (x.gpu[0].name for x in linked.launches)
    seen = Counter(dtype_by_name(name) for name in names if PRODUCT in kinds_of(name))
    return seen.most_common(1)[0][0] if seen else "fp32"


_SPELT = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp8": "c10::Float8_e4m3fn"}


def add_types(linked: LinkedTrace) -> str | None:
    """Give every input the type of the trace's products, where no operator recorded types.

    Returns that type, or None where there was nothing to add.
    """
    if any(op.args.types is not NO_RAW for op in linked.ops):
        return None
    sized = [op for op in linked.ops if op.args.dims is not NO_RAW or op.args.old_dims is not NO_RAW]
    if not any(op.shapes() for op in sized):
        return None
    dtype = common_dtype(linked)
    spelt = _SPELT.get(dtype, "float")
    lists: dict[int, msgspec.Raw] = {}
    for op in sized:
        inputs = len(op.shapes())
        if inputs not in lists:
            lists[inputs] = msgspec.Raw(msgspec.json.encode([spelt] * inputs))
        op.args = msgspec.structs.replace(op.args, types=lists[inputs])
    return dtype


def elements_by_grid(event: Event) -> float:
    """Elements that a kernel's grid covers."""
    return float(prod(event.grid() or (1,))) * _per_block(event)


def _per_block(event: Event) -> float:
    threads = prod(event.block() or (1,))
    if "vectorized_elementwise" in event.name or "unrolled_elementwise" in event.name:
        return float(threads * 4)  # whatever the vector width (thread_work_size in PyTorch)
    stated = _WORK_PER_BLOCK.search(event.name)
    return float(int(stated[1]) * int(stated[2])) if stated else float(threads)


def counted(event: Event, operator: str = "") -> Kernel | None:
    """A kernel whose name or grid states its sizes; None for all others and where there is no grid."""
    kinds = kinds_of(event.name)
    if not event.grid() or not kinds:
        return None
    dtype = dtype_by_name(event.name)
    elements, width = elements_by_grid(event), 4 if dtype == "tf32" else dtype_bytes(dtype)
    if kinds[0] in ("softmax", "softmax_backward"):
        return _warp_softmax(event, dtype, operator)
    if kinds[0] in ("attention", "attention_backward"):
        return _flash(event, dtype, operator)
    if kinds[0] == "optimizer":
        return _multi_tensor(event, operator)
    if STREAM not in kinds:
        return None
    inputs = 2 if _is_binary(event.name) else 1
    return Kernel.of(
        "elementwise", dtype, operator=operator, sizing=Sizing.COUNTED, elements=elements,
        read_bytes=inputs * elements * width, write_bytes=elements * width,
    )  # fmt: skip


def unsized(event: Event, operator: str = "") -> Kernel:
    """A kernel whose sizes nothing states: it keeps its measured time. On another GPU that time is scaled as
    a large product's or a large copy's would be."""
    name, dtype = operator or short_name(event.name), dtype_by_name(event.name)
    if PRODUCT in kinds_of(event.name):
        n = _LARGE_PRODUCT
        return Kernel.of("gemm", dtype, operator=name, sizing=Sizing.UNKNOWN, batch=1, m=n, n=n, k=n)
    moved = 4 * _LARGE_STREAM
    return Kernel.of(
        "elementwise", dtype, operator=name, sizing=Sizing.UNKNOWN, elements=_LARGE_STREAM, read_bytes=moved,
        write_bytes=moved,
    )  # fmt: skip


def _warp_softmax(event: Event, dtype: str, operator: str) -> Kernel | None:
    """A softmax whose rows live in registers."""
    found = _WARP_SOFTMAX.search(event.name)
    if found is None:
        return None
    cols = 2.0 ** int(found[2])
    warps = (*event.block(), 1, 1)[1]
    rows = float(prod(event.grid()) * warps * (2 if cols <= _TWO_ROWS else 1))
    family = "softmax_backward" if found[1] == "backward" else "softmax"
    return Kernel.of(family, dtype, operator=operator, sizing=Sizing.NAMED, rows=rows, cols=cols)


def _flash(event: Event, dtype: str, operator: str) -> Kernel | None:
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
        "attention" if forward else "attention_backward", dtype, operator=operator, sizing=Sizing.NAMED,
        batch=batch, heads=heads, kv_heads=heads, q=length, kv=length,
        head_dim=float(found[2]), causal=causal,
    )  # fmt: skip


def _multi_tensor(event: Event, operator: str) -> Kernel:
    """A foreach or fused optimizer kernel: a block takes a chunk of one tensor of each list."""
    lists = re.search(r"TensorList\w*Metadata<(\d+)", event.name)
    depth = int(lists[1]) if lists else 2
    elements = float(prod(event.grid()) * _CHUNK * _FILLED)
    return Kernel.of(
        "optimizer", "fp32", operator=operator, sizing=Sizing.COUNTED, elements=elements,
        read_bytes=4 * depth * elements, write_bytes=4 * max(depth - 1, 1) * elements, tensors=30,
    )  # fmt: skip


def _is_binary(kernel: str) -> bool:
    named = "BinaryFunctor" in kernel or "CUDAFunctor_add" in kernel
    return named or ("CUDAFunctorOnSelf" not in kernel and "Functor_add" in kernel)
