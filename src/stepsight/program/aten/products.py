"""Matrix products and attention."""

from __future__ import annotations

from math import prod

from stepsight.program.aten.call import AtenCall, Precision, Sized, TensorFact, column_major
from stepsight.program.job import Kernel


def gemm_kernel(name: str, dtype: str, batch: int, m: int, n: int, k: int) -> Kernel:
    """C[b] (m×n) = A[b] (m×k) · B[b] (k×n)."""
    return Kernel.of("gemm", dtype, operator=name, batch=batch, m=m, n=n, k=k)


def product(left: Sized, right: Sized, precision: Precision, name: str = "linear") -> Kernel:
    """The kernel of a matrix product or of a batch of them."""
    dtype = precision.matmul(left.dtype)
    m, k = left.shape[-2:]
    return gemm_kernel(name, dtype, prod(left.shape[:-2]), m, right.shape[-1], k)


def _named(call: AtenCall, left: TensorFact) -> str:
    """Forward: a layer. Backward: a transposed left operand means a weight's gradient."""
    if not call.node:
        return "linear"
    return "wgrad" if column_major(left) else "dgrad"


def mm(call: AtenCall, precision: Precision) -> list[Kernel]:
    left, right = call.on_gpu[:2]
    return [product(left, right, precision, _named(call, left))]


def addmm(call: AtenCall, precision: Precision) -> list[Kernel]:
    left, right = call.arguments["mat1"], call.arguments["mat2"]
    return [product(left, right, precision)]


def bmm(call: AtenCall, precision: Precision) -> list[Kernel]:
    left, right = call.on_gpu[:2]
    return [product(left, right, precision, "bmm")]


def baddbmm(call: AtenCall, precision: Precision) -> list[Kernel]:
    return [product(call.arguments["batch1"], call.arguments["batch2"], precision, "bmm")]


def mv(call: AtenCall, precision: Precision) -> list[Kernel]:
    matrix = call.on_gpu[-2] if call.name == "addmv" else call.on_gpu[0]
    m, k = matrix.shape
    return [gemm_kernel("linear", precision.matmul(matrix.dtype), 1, m, 1, k)]


def dot(call: AtenCall, precision: Precision) -> list[Kernel]:
    vector = call.on_gpu[0]
    return [Kernel.of("reduce", vector.dtype, operator="dot", rows=1, cols=vector.elements)]


def grouped_mm(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A mixture of experts: rows are shared out among the groups, here evenly."""
    left, right, out = call.on_gpu[0], call.on_gpu[1], call.made_on_gpu[0]
    dtype = precision.matmul(left.dtype)
    if len(left.shape) == 2 and len(right.shape) == 3:
        groups = right.shape[0]
        rows = max(left.shape[0] // groups, 1)
        return [gemm_kernel("grouped", dtype, groups, rows, right.shape[2], left.shape[1])]
    if len(left.shape) == 2 and len(right.shape) == 2 and len(out.shape) == 3:
        groups = out.shape[0]
        depth = max(left.shape[1] // groups, 1)
        return [gemm_kernel("grouped", dtype, groups, left.shape[0], right.shape[1], depth)]
    return [product(left, right, precision, "grouped")]


def scaled_mm(call: AtenCall, precision: Precision) -> list[Kernel]:
    left, right = call.on_gpu[:2]
    return [product(left, right, precision)]


def attention_kernel(family: str, q: Sized, k: Sized, causal: bool, name: str = "") -> Kernel:
    """Fused attention; batch × heads × sequence × head_dim. ``name`` says which kernel (flash, cuDNN's …)."""
    return Kernel.of(
        family, q.dtype, operator=name, batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], q=q.shape[2],
        kv=k.shape[2], head_dim=q.shape[3], causal=int(causal),
    )  # fmt: skip


def attention(call: AtenCall, precision: Precision) -> list[Kernel]:
    q, k = call.arguments["query"], call.arguments["key"]
    return [attention_kernel("attention", q, k, bool(call.get("is_causal", False)), call.name)]


def attention_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    q, k = call.arguments["query"], call.arguments["key"]
    return [attention_kernel("attention_backward", q, k, bool(call.get("is_causal", False)), call.name)]
