"""Views and the copies that stand in where a view is impossible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stepsight.program.aten.movement import concat_kernel, copy_kernel, fill_kernel
from stepsight.workload.operators.tape import Grads, Tape, node_of, operator
from stepsight.workload.operators.tensor import Tensor, view_strides


@operator
def view(tape: Tape, x: Tensor, *shape: int, name: str = "aten::view") -> Tensor:
    """The same elements under other sizes; -1 is inferred. The strides must allow it."""
    sizes = _infer(x, shape)
    strides = view_strides(x, sizes)
    if strides is None:
        raise RuntimeError(f"view of {x.shape} {x.strides} as {sizes} needs a copy")
    out = x.alias(sizes, strides)
    return view_operator(tape, name, x, out, lambda grad: reshape(tape, grad, *x.shape))


def view_operator(
    tape: Tape, name: str, x: Tensor, out: Tensor, back: Callable[[Tensor], Tensor], node: str = ""
) -> Tensor:
    """A host operator without a kernel: ``out`` is ``x`` seen in another way, ``back`` turns its gradient."""
    with tape.op(name, (x,)):
        tape.record(node or node_of(name), (x,), (out,), lambda grad: (back(grad),))
    return out


@operator
def reshape(tape: Tape, x: Tensor, *shape: int) -> Tensor:
    """A view where the strides allow it, else a contiguous copy."""
    sizes = _infer(x, shape)
    with tape.op("aten::reshape", (x,)):
        if x.is_contiguous():
            return view(tape, x, *sizes)
        if view_strides(x, sizes) is not None:
            return view(tape, x, *sizes, name="aten::_reshape_alias")
        return view(tape, clone(tape, x), *sizes, name="aten::_unsafe_view")


def clone(tape: Tape, x: Tensor) -> Tensor:
    """A contiguous copy."""
    with tape.op("aten::clone", (x,)):
        out = Tensor.new(x.shape, x.dtype)
        tape.call("aten::clone", (x,), copy_kernel(x, out))
        tape.record("CloneBackward0", (x,), (out,), lambda grad: (grad,))
    return out


@operator
def contiguous(tape: Tape, x: Tensor) -> Tensor:
    if x.is_contiguous():
        return x
    with tape.op("aten::contiguous", (x,)):
        return clone(tape, x)


@operator
def transpose(tape: Tape, x: Tensor, first: int, second: int) -> Tensor:
    out = swapped(x, first, second)
    return view_operator(tape, "aten::transpose", x, out, lambda grad: swapped(grad, first, second))


def t(tape: Tape, x: Tensor) -> Tensor:
    """The transpose of a matrix."""
    return view_operator(tape, "aten::t", x, swapped(x, 0, 1), lambda grad: swapped(grad, 0, 1))


@operator
def permute(tape: Tape, x: Tensor, *order: int) -> Tensor:
    inverse = tuple(order.index(i) for i in range(len(order)))
    return view_operator(tape, "aten::permute", x, _permuted(x, order), lambda grad: _permuted(grad, inverse))


@operator
def expand(tape: Tape, x: Tensor, *shape: int) -> Tensor:
    """Repeats size-1 dimensions without a copy."""
    pad = len(shape) - len(x.shape)
    dims = zip((1,) * pad + x.shape, shape, (0,) * pad + x.strides, strict=True)
    out = x.alias(tuple(shape), tuple(0 if a == 1 and b != 1 else stride for a, b, stride in dims))
    return view_operator(tape, "aten::expand", x, out, lambda grad: tape.sum_to(grad, x.shape))


@operator
def unsqueeze(tape: Tape, x: Tensor, dim: int) -> Tensor:
    at = dim if dim >= 0 else len(x.shape) + 1 + dim
    stride = x.shape[at] * x.strides[at] if at < len(x.shape) else 1
    out = x.alias((*x.shape[:at], 1, *x.shape[at:]), (*x.strides[:at], stride, *x.strides[at:]))
    return view_operator(tape, "aten::unsqueeze", x, out, lambda grad: _dropped(grad, at))


@operator
def split(
    tape: Tape, x: Tensor, sizes: Sequence[int], dim: int, name: str = "aten::split_with_sizes"
) -> list[Tensor]:
    """Consecutive pieces along ``dim`` as views; the gradient is their concatenation."""
    at = dim % len(x.shape)
    with tape.op(name, (x,)):
        pieces = [x.alias((*x.shape[:at], size, *x.shape[at + 1 :]), x.strides) for size in sizes]

        def rule(*grads: Tensor | None) -> Grads:
            whole = [
                Tensor.new(p.shape, x.dtype) if grad is None else grad
                for p, grad in zip(pieces, grads, strict=True)
            ]
            for piece, grad in zip(whole, grads, strict=True):
                if grad is None:
                    tape.call("aten::zeros", (), fill_kernel(piece))
            return (concatenated(tape, whole, at),)

        tape.record(node_of(name), (x,), pieces, rule)
    return pieces


@operator
def narrow(tape: Tape, x: Tensor, dim: int, size: int, *, start: int = 0) -> Tensor:
    """``size`` entries of ``dim``; the gradient is padded with zeros."""
    at = dim % len(x.shape)
    with tape.op("aten::slice", (x,)):
        out = x.alias((*x.shape[:at], size, *x.shape[at + 1 :]), x.strides)

        def rule(grad: Tensor) -> Grads:
            if size == x.shape[at]:
                return (grad,)
            whole = Tensor.new(x.shape, x.dtype)
            tape.call("aten::slice_backward", (grad,), fill_kernel(whole), copy_kernel(grad, out))
            return (whole,)

        tape.record("SliceBackward0", (x,), (out,), rule)
    return out


@operator
def cat(tape: Tape, parts: Sequence[Tensor], dim: int) -> Tensor:
    """The parts side by side in a new tensor; gradients are views of its gradient."""
    at = dim % len(parts[0].shape)
    with tape.op("aten::cat", parts):
        parts = _promoted(tape, parts)
        out = concatenated(tape, parts, at)

        def rule(grad: Tensor) -> Grads:
            return [grad.alias(p.shape, grad.strides) for p in parts]

        tape.record("CatBackward0", parts, (out,), rule)
    return out


def _promoted(tape: Tape, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Autocast brings the parts of a concatenation to their widest dtype."""
    if len({p.dtype for p in parts}) == 1:
        return parts
    return [cast(tape, p, "fp32") for p in parts]


def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """The tensor in another dtype; its gradient is cast back."""
    if x.dtype == dtype:
        return x
    with tape.op("aten::to", (x,)):
        out = _converted(tape, x, dtype)
        tape.record("ToCopyBackward0", (x,), (out,), lambda grad: (_converted(tape, grad, x.dtype),))
    return out


def _converted(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    out = x.empty_like(dtype)
    tape.call("aten::_to_copy", (x,), copy_kernel(x, out))
    return out


def concatenated(tape: Tape, parts: Sequence[Tensor], at: int) -> Tensor:
    shape = parts[0].shape
    out = Tensor.new((*shape[:at], sum(p.shape[at] for p in parts), *shape[at + 1 :]), parts[0].dtype)
    tape.call("aten::cat", parts, concat_kernel(out, len(parts)))
    return out


def swapped(x: Tensor, first: int, second: int) -> Tensor:
    """The view with two dimensions exchanged."""
    order = list(range(len(x.shape)))
    a, b = first % len(order), second % len(order)
    order[a], order[b] = order[b], order[a]
    return _permuted(x, order)


def _permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.alias(tuple(x.shape[i] for i in order), tuple(x.strides[i] for i in order))


def _dropped(x: Tensor, at: int) -> Tensor:
    return x.alias(x.shape[:at] + x.shape[at + 1 :], x.strides[:at] + x.strides[at + 1 :])


def _infer(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    known = prod(s for s in shape if s != -1)
    return tuple(x.elements // max(known, 1) if s == -1 else s for s in shape)
