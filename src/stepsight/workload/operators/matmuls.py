"""Matrix products as eager PyTorch runs them: linear, matmul, bmm, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.program.aten import products
from stepsight.program.job import Kernel
from stepsight.workload.operators.pointwise import lowered
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor, broadcast
from stepsight.workload.operators.views import expand, given, reshape, swapped, t, view


def gemm_kernel(tape: Tape, name: str, dtype: str, batch: int, m: int, n: int, k: int) -> Kernel:
    computed = (tape.gemm_dtype or dtype) if dtype == "fp32" else dtype
    return products.gemm_kernel(name, computed, batch, m, n, k)


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


def addmm(tape: Tape, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """bias + a · b in one kernel."""
    with tape.op("aten::addmm", (bias, a, b)):
        b, a, bias = lowered(tape, b), lowered(tape, a), lowered(tape, bias)
        (m, k), n = a.shape, b.shape[1]
        out = Tensor.new((m, n), a.dtype)
        tape.call("aten::addmm", (bias, a, b), gemm_kernel(tape, "linear", a.dtype, 1, m, n, k))
        tape.save(a, b)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            grad = given(g[0])
            da, db = _mm_gradients(tape, grad, a, b)
            return grad if bias.requires_grad else None, da, db

        tape.record("AddmmBackward0", (bias, a, b), (out,), rule)
    return out


def mm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    with tape.op("aten::mm", (a, b)):
        b, a = lowered(tape, b), lowered(tape, a)
        out = _mm(tape, a, b, "linear")
        tape.save(a, b)
        tape.record(
            "MmBackward0", (a, b), (out,), lambda g: _mm_gradients(tape, given(g[0]), a, b, last=True)
        )
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


def bmm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    with tape.op("aten::bmm", (a, b)):
        b, a = lowered(tape, b), lowered(tape, a)
        out = _bmm(tape, a, b)
        tape.save(a, b)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            grad = given(g[0])
            db = _bmm(tape, swapped(a, 1, 2), grad) if b.requires_grad else None
            da = _bmm(tape, grad, swapped(b, 1, 2)) if a.requires_grad else None
            return da, db

        tape.record("BmmBackward0", (a, b), (out,), rule)
    return out


def _bmm(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    (batch, m, k), n = a.shape, b.shape[2]
    tape.call("aten::bmm", (a, b), gemm_kernel(tape, "bmm", a.dtype, batch, m, n, k))
    return Tensor.new((batch, m, n), a.dtype)


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
