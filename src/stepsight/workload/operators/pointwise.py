"""Element-wise functions, casts, dropout and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.program.aten.movement import pointwise_kernel
from stepsight.program.aten.rows import dropout_kernel
from stepsight.workload.operators.tape import Grads, Tape, operator
from stepsight.workload.operators.tensor import Tensor, broadcast
from stepsight.workload.operators.views import cast


def emit(tape: Tape, name: str, inputs: Sequence[Tensor], out: Tensor, aten: str = "") -> Tensor:
    """An element-wise library call inside the open operator."""
    tape.call(f"aten::{aten or name}", inputs, pointwise_kernel(name, inputs, out))
    return tape.made(out)


def like(inputs: Sequence[Tensor], dtype: str | None = None) -> Tensor:
    """The result of an element-wise kernel: the inputs' common shape, laid out as the first full one."""
    shape = inputs[0].shape
    for other in inputs[1:]:
        shape = broadcast(shape, other.shape)
    for x in inputs:
        if x.shape == shape:
            return x.empty_like(dtype)
    return Tensor.new(shape, dtype or inputs[0].dtype)


def lowered(tape: Tape, x: Tensor) -> Tensor:
    """What autocast hands to a matrix product: the lower precision, parameters cast once a step.

    Autocast casts a function's arguments from the last to the first.
    """
    if tape.autocast is None or x.dtype != "fp32":
        return x
    if not x.parameter:
        return cast(tape, x, tape.autocast)
    known = tape.known_cast(x)
    if known is None:
        known = cast(tape, x, tape.autocast)
        tape.remember_cast(x, known)
    return known


def raised(tape: Tape, x: Tensor) -> Tensor:
    """What autocast hands to a function that needs the range of fp32."""
    return x if tape.autocast is None else cast(tape, x, "fp32")


def unary(tape: Tape, name: str, x: Tensor, *, saves: str = "input") -> Tensor:
    """relu, gelu, tanh, sigmoid, silu: the gradient reads the saved input or output."""
    out = x.empty_like()
    kept = out if saves == "output" else x
    backward = {"relu": "threshold_backward"}.get(name, f"{name}_backward")

    def rule(grad: Tensor) -> Grads:
        return (emit(tape, backward, (grad, kept), like((grad, kept))),)

    return tape.function(f"aten::{name}", (x,), out, rule, pointwise_kernel(name, (x,), out), saves=(kept,))


@operator
def relu(tape: Tape, x: Tensor) -> Tensor:
    return unary(tape, "relu", x, saves="output")


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    """1/√x; its gradient is written out: -½ · grad · result³."""
    out = x.empty_like()

    def rule(grad: Tensor) -> Grads:
        cubed = emit(tape, "pow", (out,), out.empty_like())
        scaled = emit(tape, "mul", (grad,), grad.empty_like())
        return (emit(tape, "mul", (scaled, cubed), like((scaled, cubed))),)

    kernel = pointwise_kernel("rsqrt", (x,), out)
    return tape.function("aten::rsqrt", (x,), out, rule, kernel, saves=(out,))


@operator
def gelu(tape: Tape, x: Tensor) -> Tensor:
    return unary(tape, "gelu", x)


@operator
def tanh(tape: Tape, x: Tensor) -> Tensor:
    return unary(tape, "tanh", x, saves="output")


@operator
def silu(tape: Tape, x: Tensor) -> Tensor:
    return unary(tape, "silu", x)


def sigmoid(tape: Tape, x: Tensor) -> Tensor:
    return unary(tape, "sigmoid", x, saves="output")


def tensor_binary(tape: Tape, name: str, a: Tensor, b: Tensor) -> Tensor:
    """add, sub or mul of two tensors, broadcast; gradients are summed back to each size."""
    out = like((a, b), _wider(a, b))
    kept = [other for one, other in ((a, b), (b, a)) if one.requires_grad] if name == "mul" else []

    def rule(grad: Tensor) -> Grads:
        if name == "mul":  # autograd computes the second operand's gradient first
            second = emit(tape, "mul", (grad, a), like((grad, a))) if b.requires_grad else None
            return [emit(tape, "mul", (grad, b), like((grad, b))) if a.requires_grad else None, second]
        second = grad if b.requires_grad else None
        if name == "sub" and second is not None:
            second = emit(tape, "neg", (grad,), grad.empty_like())
        return [grad if a.requires_grad else None, second]

    kernel = pointwise_kernel(name, (a, b), out)
    return tape.function(f"aten::{name}", (a, b), out, rule, kernel, saves=kept)


def _wider(a: Tensor, b: Tensor) -> str:
    return "fp32" if "fp32" in (a.dtype, b.dtype) else a.dtype


@operator
def add(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    return tensor_binary(tape, "add", a, b)


@operator
def mul(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    return tensor_binary(tape, "mul", a, b)


@operator
def negate(tape: Tape, x: Tensor) -> Tensor:
    return scalar(tape, "neg", x)


@operator
def scalar(tape: Tape, name: str, x: Tensor, value: float = 0.0) -> Tensor:
    """add, sub, mul, div or pow of a tensor and a number, or neg."""
    out = x.empty_like()

    def rule(grad: Tensor) -> Grads:
        if name in ("add", "sub"):
            return (grad,)
        if name != "pow":
            return (emit(tape, name, (grad,), grad.empty_like()),)
        powered = emit(tape, "pow", (x,), x.empty_like())
        scaled = emit(tape, "mul", (powered,), powered.empty_like())
        return (emit(tape, "mul", (grad, scaled), like((grad, scaled))),)

    kernel = pointwise_kernel(name, (x,), out)
    saves = (x,) if name == "pow" else ()
    return tape.function(f"aten::{name}", (x,), out, rule, kernel, saves=saves)


@operator
def dropout(tape: Tape, x: Tensor, probability: float) -> Tensor:
    """Training dropout: one fused kernel on a GPU, mask, scale and product on a CPU."""
    if probability == 0:
        return x
    with tape.op("aten::dropout", (x,)):
        if tape.device == "cuda":
            return _fused_dropout(tape, x)
        mask = x.empty_like()
        emit(tape, "bernoulli_", (mask,), mask)
        emit(tape, "div_", (mask,), mask)
        return mul(tape, x, mask)


def _fused_dropout(tape: Tape, x: Tensor) -> Tensor:
    out, mask = x.empty_like(), x.empty_like("bool")

    def rule(grad: Tensor) -> Grads:
        return (emit(tape, "native_dropout_backward", (grad, mask), grad.empty_like()),)

    return tape.function("aten::native_dropout", (x,), out, rule, dropout_kernel(x), saves=(mask,))
