"""What a kernel's name and launch grid state by themselves: its kind, its type, how many elements it covers.

PyTorch's element-wise kernels handle a known number of elements per block. Nothing else is read off a grid: a
kernel whose sizes nothing states keeps its measured time.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from math import prod

import msgspec

from stepsight.constants import area
from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel, Sizing
from stepsight.trace.events import NO_RAW, Event
from stepsight.trace.link import LinkedTrace

C = area("traces")

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
_TWO_INPUTS = re.compile(r"BinaryFunctor|CUDAFunctor_add|^(?!.*CUDAFunctorOnSelf).*Functor_add")
_SIDE, _ELEMENTS = 2048.0, 2.0**24
_PASSED_OVER = {"elements": _ELEMENTS, "read_bytes": 4 * _ELEMENTS, "write_bytes": 4 * _ELEMENTS}
_ATTENDED = {"batch": 8.0, "heads": 16.0, "kv_heads": 16.0, "q": _SIDE, "kv": _SIDE, "head_dim": 128.0}
_LARGE: dict[str, dict[str, float]] = {
    "gemm": {"batch": 1.0, "m": _SIDE, "n": _SIDE, "k": _SIDE},
    "attention": {**_ATTENDED, "causal": 1.0}, "attention_backward": {**_ATTENDED, "causal": 1.0},
    "elementwise": _PASSED_OVER, "optimizer": {**_PASSED_OVER, "tensors": 1.0},
}  # fmt: skip
"""Kernels that fill any GPU, by family."""


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
    """An element-wise kernel by its grid; None for all others and where there is no grid."""
    if not event.grid() or STREAM not in kinds_of(event.name):
        return None
    dtype, elements = dtype_by_name(event.name), elements_by_grid(event)
    size_bytes = elements * (4 if dtype == "tf32" else dtype_bytes(dtype))
    inputs = 2 if _TWO_INPUTS.search(event.name) else 1
    kernel = Kernel.of(
        "elementwise", dtype, operator=operator, sizing=Sizing.COUNTED, elements=elements,
        read_bytes=inputs * size_bytes, write_bytes=size_bytes,
    )  # fmt: skip
    return replace(kernel, size_spread=C.COUNTED_SPREAD)


def unsized(event: Event, operator: str = "") -> Kernel:
    """A kernel whose sizes nothing states: it keeps its measured time. On another GPU that time is scaled as
    that of a large one of its kind would be."""
    kinds = kinds_of(event.name)
    family = "gemm" if PRODUCT in kinds else next((k for k in kinds if k in _LARGE), "elementwise")
    name, dtype = operator or short_name(event.name), dtype_by_name(event.name)
    kernel = Kernel.of(family, dtype, operator=name, sizing=Sizing.UNKNOWN)
    return replace(kernel, dims=tuple(_LARGE[family].items()))
