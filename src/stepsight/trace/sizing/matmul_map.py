"""GEMM sizes from an operator's recorded inputs."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from stepsight.dtypes import dtype_bytes
from stepsight.kernels.gemms import ROW_BYTES
from stepsight.program.job import Kernel
from stepsight.program.variants import UNALIGNED
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.tensors import Tensor, positional

GEMM_KERNEL = re.compile(
    r"gemm|gemv|Cijk|nvjet|cutlass(?!.*flash)(?!.*Flash)|xmma|s884|s1688|s16816|cublas|dot_kernel|wgrad|dgrad"
    r"|implicit_convolve|winograd|cudnn.*conv|convolve|MIOpen.*Conv|igemm|naive_conv",
    re.IGNORECASE,
)
_HELPERS = re.compile(
    r"splitKreduce|splitk_reduce|epilogue::impl|reduce_1Block|winograd_nonfused|computeOffsets|kern_precompute|nchwToNhwc|nhwcToNchw|transpose",
    re.I,
)
_ALIGNED_TO = re.compile(r"_align(\d)")
_TENSOR_CORE_FP32 = re.compile(r"tf32|s1688|s16816|tensorop_s|xf32", re.IGNORECASE)


GEMM_OPS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm", "_int_mm", "addmv", "mv"})


def gemm_by_scalars(op: Event) -> Kernel | None:
    """A hand-written matmul kernel that was given its M, N and K as numbers only."""
    if not re.search(r"linear|matmul|gemm|(^|_)mm(_|$)", op.name):
        return None
    numbers = [int(x) for x in op.concrete() if isinstance(x, str) and x.isdigit()]
    if len(numbers) < 3 or min(numbers[:3]) < 16:
        return None
    m, n, k = numbers[:3]
    return Kernel.of("gemm", "bf16", operator=op.name, batch=1, m=m, n=n, k=k)


def gemm_kernel(op: Event, event: Event) -> Kernel | None:
    """C = A·B from the operator's matrices; None where it has no two that fit."""
    inputs = positional(op)
    name = op.name.split("::")[-1]
    first = 1 if name in ("addmm", "baddbmm", "addbmm", "addmv") else 0
    pair = inputs[first : first + 2]
    if len(pair) < 2 or pair[0] is None or pair[1] is None:
        return None
    sizes = _sizes(name, pair[0], pair[1])
    if sizes is None:
        return None
    batch, m, n, k = sizes
    dtype = compute_dtype(pair[0].dtype, event.name)
    if _is_helper(event.name):
        # The tail of a split-K GEMM: partial results are read and added up.
        size = float(batch * m * n * 4)
        return Kernel.of("elementwise", dtype, operator="split_k_reduce", elements=batch * m * n,
                         read_bytes=2 * size, write_bytes=size)  # fmt: skip
    if _is_unaligned(event.name, dtype):
        name = f"{name}, {UNALIGNED}"
    return Kernel.of("gemm", dtype, operator=name, batch=batch, m=m, n=n, k=k)


@lru_cache(maxsize=8192)
def _is_helper(kernel: str) -> bool:
    return _HELPERS.search(kernel) is not None


@lru_cache(maxsize=8192)
def _is_unaligned(kernel: str, dtype: str) -> bool:
    """Whether the kernel was made for rows off 16-byte boundaries: CUTLASS names the elements it loads."""
    loads = _ALIGNED_TO.search(kernel)
    return loads is not None and int(loads[1]) * dtype_bytes(dtype) < ROW_BYTES


def _sizes(name: str, a: Tensor, b: Tensor) -> tuple[int, int, int, int] | None:
    if name == "linear" and len(b.shape) == 2:
        return 1, prod(a.shape[:-1]), b.shape[0], a.shape[-1]
    if len(a.shape) == 2 and len(b.shape) == 2 and a.shape[1] == b.shape[0]:
        return 1, a.shape[0], b.shape[1], a.shape[1]
    if len(a.shape) == 3 and len(b.shape) == 3 and a.shape[2] == b.shape[1]:
        return a.shape[0], a.shape[1], b.shape[2], a.shape[2]
    if len(a.shape) == 2 and len(b.shape) == 1 and a.shape[1] == b.shape[0]:
        return 1, a.shape[0], 1, a.shape[1]
    if len(a.shape) > 2 and len(b.shape) == 2 and a.shape[-1] == b.shape[0]:
        return 1, prod(a.shape[:-1]), b.shape[1], a.shape[-1]
    return None


@lru_cache(maxsize=8192)
def compute_dtype(dtype: str, kernel: str) -> str:
    """The type a product of this dtype computes in, by its kernel's name."""
    return "tf32" if dtype == "fp32" and _TENSOR_CORE_FP32.search(kernel) else dtype
