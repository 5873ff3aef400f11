"""Matrix products as eager PyTorch runs them: linear, matmul, bmm, einsum, and their gradients."""

from __future__ import annotations

from math import prod

from stepsight.program.aten import products
from stepsight.program.job import Kernel
from stepsight.workload.operators.pointwise import lowered
from stepsight.workload.operators.tape import Grads, Tape, operator
from stepsight.workload.operators.tensor import Tensor, broadcast
from stepsight.workload.operators.views import expand, permute, reshape, swapped, t, unsqueeze, view


def gemm_kernel(tape: Tape, name: str, dtype: str, batch: int, m: int, n: int, k: int) -> Kernel:
    computed = (tape.gemm_dtype or dtype) if dtype == "fp32" else dtype
    return products.gemm_kernel(name, computed, batch, m, n, k)


@operator
def linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, ``weight`` being out × in."""
    with tape.op("aten::linear", (x, weight) if bias is None else (x, weight, bias)):
        bias = None if bias is None else lowered(tape, bias)
        weight = lowered(tape, weight)
        x = lowered(tape, x)
        if bias is None:
            return matmul(tape, x, t(tape, weight))
        if len(x.shape) == 2:
            return addmm(tape, bias, x, t(tape, weight))
        flat = reshape(tape, x, -1, x.shape[-1])
        return view(tape, addmm(tape, bias, flat, t(tape, weight)), *x.shape[:-1], weight.shape[0])


@operator
def addmm(tape: Tape, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """bias + a · b in one kernel."""
    with tape.op("aten::addmm", (bias, a, b)):
        b, a, bias = lowered(tape, b), lowered(tape, a), lowered(tape, bias)
        (m, k), n = a.shape, b.shape[1]

        def rule(grad: Tensor) -> Grads:
            da, db = _mm_gradients(tape, grad, a, b)
            return grad if bias.requires_grad else None, da, db

        kernel = gemm_kernel(tape, "linear", a.dtype, 1, m, n, k)
        out = Tensor.new((m, n), a.dtype)
        return tape.function("aten::addmm", (bias, a, b), out, rule, kernel, saves=(a, b))


def mm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    with tape.op("aten::mm", (a, b)):
        b, a = lowered(tape, b), lowered(tape, a)
        out = _mm(tape, a, b, "linear")
        tape.save(a, b)
        tape.record("MmBackward0", (a, b), (out,), lambda grad: _mm_gradients(tape, grad, a, b, last=True))
    return out


def _mm(tape: Tape, a: Tensor, b: Tensor, name: str) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    tape.call("aten::mm", (a, b), gemm_kernel(tape, name, a.dtype, 1, m, n, k))
    return Tensor.new((m, n), a.dtype)


def _mm_gradients(
    tape: Tape, grad: Tensor, a: Tensor, b: Tensor, *, last: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a · b; ``last``: that of ``b`` first, as mm (but not addmm) does."""
    if last:
        db = _right_gradient(tape, grad, a, b)
        return _left_gradient(tape, grad, a, b), db
    return _left_gradient(tape, grad, a, b), _right_gradient(tape, grad, a, b)


def _left_gradient(tape: Tape, grad: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    """grad · bᵀ, computed transposed where ``a`` lies transposed."""
    if not a.requires_grad:
        return None
    if _column_major(a):
        return swapped(_mm(tape, b, swapped(grad, 0, 1), "dgrad"), 0, 1)
    return _mm(tape, grad, swapped(b, 0, 1), "dgrad")


def _right_gradient(tape: Tape, grad: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    """aᵀ · grad, computed transposed where ``b`` lies transposed (a linear layer's weight does)."""
    if not b.requires_grad:
        return None
    if _column_major(b):
        return swapped(_mm(tape, swapped(grad, 0, 1), a, "wgrad"), 0, 1)
    return _mm(tape, swapped(a, 0, 1), grad, "wgrad")


def _column_major(x: Tensor) -> bool:
    return x.strides[0] == 1 and x.strides[1] == x.shape[0]


@operator
def bmm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    with tape.op("aten::bmm", (a, b)):
        b, a = lowered(tape, b), lowered(tape, a)
        out = _bmm(tape, a, b)
        tape.save(a, b)

        def rule(grad: Tensor) -> Grads:
            db = _bmm(tape, swapped(a, 1, 2), grad) if b.requires_grad else None
            da = _bmm(tape, grad, swapped(b, 1, 2)) if a.requires_grad else None
            return da, db

        tape.record("BmmBackward0", (a, b), (out,), rule)
    return out


def _bmm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    (batch, m, k), n = a.shape, b.shape[2]
    tape.call("aten::bmm", (a, b), gemm_kernel(tape, "bmm", a.dtype, batch, m, n, k))
    return Tensor.new((batch, m, n), a.dtype)


@operator
def matmul(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """A product of stacks of matrices, folded into mm or bmm as ``torch.matmul`` does."""
    with tape.op("aten::matmul", (a, b)):
        b, a = lowered(tape, b), lowered(tape, a)
        if len(a.shape) == 2 and len(b.shape) == 2:
            return mm(tape, a, b)
        if len(b.shape) == 2:
            flat = reshape(tape, a, -1, a.shape[-1])
            return view(tape, mm(tape, flat, b), *a.shape[:-1], b.shape[1], name="aten::_unsafe_view")
        stack = broadcast(a.shape[:-2], b.shape[:-2])
        left = reshape(tape, expand(tape, a, *stack, *a.shape[-2:]), -1, *a.shape[-2:])
        right = reshape(tape, expand(tape, b, *stack, *b.shape[-2:]), -1, *b.shape[-2:])
        out = bmm(tape, left, right)
        return view(tape, out, *stack, a.shape[-2], b.shape[-1], name="aten::_unsafe_view")


@operator
def einsum(tape: Tape, equation: str, a: Tensor, b: Tensor) -> Tensor:
    """As torch does it: labels in the order of the output, then summed ones by alphabet."""
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    labels = out + "".join(sorted(set(left + right) - set(out)))
    with tape.op("aten::einsum", (a, b)):
        return _product(
            tape, labels, len(out), _aligned(tape, a, left, labels), _aligned(tape, b, right, labels)
        )


def _aligned(tape: Tape, x: Tensor, own: str, labels: str) -> Tensor:
    """One dimension per label, of size 1 where the tensor does not have it."""
    missing = [label for label in labels if label not in own]
    for _ in missing:
        x = unsqueeze(tape, x, -1)
    have = own + "".join(missing)
    return permute(tape, x, *(have.index(label) for label in labels))


def _product(tape: Tape, labels: str, kept: int, a: Tensor, b: Tensor) -> Tensor:
    rank = len(labels)
    both = [i for i in range(kept) if (a.shape[i] != 1) == (b.shape[i] != 1)]
    left_only = [i for i in range(kept) if a.shape[i] != 1 and b.shape[i] == 1]
    right_only = [i for i in range(kept) if a.shape[i] == 1 and b.shape[i] != 1]
    summed = list(range(kept, rank))
    a_order, b_order = both + left_only + summed + right_only, both + summed + right_only + left_only
    batch = prod(a.shape[i] for i in both)
    m, n = prod(a.shape[i] for i in left_only), prod(b.shape[i] for i in right_only)
    k = prod(a.shape[i] for i in summed)
    left = reshape(tape, permute(tape, a, *a_order), batch, m, k)
    right = reshape(tape, permute(tape, b, *b_order), batch, k, n)
    sizes = [a.shape[i] for i in both + left_only] + [1] * len(summed) + [b.shape[i] for i in right_only]
    result = view(tape, bmm(tape, left, right), *sizes)
    laid = both + left_only + summed + right_only
    result = permute(tape, result, *(laid.index(i) for i in range(rank)))
    return view(tape, result, *result.shape[:kept])


@operator
def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """scaled_dot_product_attention by its fused kernel; batch × heads × sequence × head_dim in and out."""
    name = "aten::_scaled_dot_product_flash_attention" + ("_for_cpu" if tape.device == "cpu" else "")
    with tape.op("aten::scaled_dot_product_attention", (q, k, v)):
        v, k, q = lowered(tape, v), lowered(tape, k), lowered(tape, q)
        out, logsumexp = _merged_layout(q), Tensor.new(q.shape[:3], "fp32")
        forward, backward = (
            products.attention_kernel(family, q, k, causal) for family in ("attention", "attention_backward")
        )

        def rule(grad: Tensor) -> Grads:
            tape.call(f"{name}_backward", (grad, q, k, v, out, logsumexp), backward)
            return [_merged_layout(x) for x in (q, k, v)]

        return tape.function(name, (q, k, v), out, rule, forward, saves=(q, k, v, out, logsumexp))


def _merged_layout(x: Tensor) -> Tensor:
    """What the fused kernels write: batch × sequence × heads × head_dim, seen transposed."""
    batch, heads, length, head_dim = x.shape
    return swapped(Tensor.new((batch, length, heads, head_dim), x.dtype), 1, 2)
