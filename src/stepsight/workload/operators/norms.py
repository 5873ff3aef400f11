"""Row-wise functions: softmax, layer norm, RMS norm; and losses."""

from __future__ import annotations

from stepsight.program.aten.rows import loss_kernels, row_kernel
from stepsight.workload.operators.pointwise import emit, like, mul, raised, rsqrt, scalar
from stepsight.workload.operators.tape import Grads, Tape, operator
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cast


def _raised_on_gpu(tape: Tape, x: Tensor) -> Tensor:
    """CUDA's autocast runs softmax and layer norm in fp32; the CPU's leaves them as they come."""
    return raised(tape, x) if tape.device == "cuda" else x


@operator
def softmax(tape: Tape, x: Tensor) -> Tensor:
    """Over the last dimension."""
    with tape.op("aten::softmax", (x,)):
        return _softmax(tape, _raised_on_gpu(tape, x), "_softmax")


def _softmax(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A softmax or its logarithm."""
    out = Tensor.new(x.shape, x.dtype)

    def rule(grad: Tensor) -> Grads:
        tape.call(f"aten::{name}_backward_data", (grad, out), row_kernel("softmax_backward", x))
        return (Tensor.new(x.shape, x.dtype),)

    return tape.function(f"aten::{name}", (x,), out, rule, row_kernel("softmax", x), saves=(out,))


@operator
def layer_norm(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with tape.op("aten::layer_norm", (x, weight, bias)):
        x = _raised_on_gpu(tape, x)
        out = Tensor.new(x.shape, x.dtype)
        mean, rstd = (Tensor.new((*x.shape[:-1], 1), "fp32") for _ in range(2))

        def rule(grad: Tensor) -> Grads:
            kernels = [row_kernel("layer_norm_backward", x)]
            if tape.device == "cuda":  # the gradients of weight and bias are a second kernel there
                kernels.append(row_kernel("layer_norm_weights", x))
            inputs = (grad, x, mean, rstd, weight, bias)
            tape.call("aten::native_layer_norm_backward", inputs, *kernels)
            dx = Tensor.new(x.shape, x.dtype) if x.requires_grad else None
            return dx, Tensor.new(weight.shape, weight.dtype), Tensor.new(bias.shape, bias.dtype)

        return tape.function(
            "aten::native_layer_norm", (x, weight, bias), out, rule,
            row_kernel("layer_norm", x), saves=(x, mean, rstd),
        )  # fmt: skip


@operator
def rms_norm(tape: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """As Llama's module writes it: fp32 inside, mean of squares, rsqrt, two products."""
    dtype = x.dtype
    wide = _converted(tape, x, "fp32")
    variance = mean_last(tape, scalar(tape, "pow", wide))
    scale = rsqrt(tape, scalar(tape, "add", variance))
    return mul(tape, weight, _converted(tape, mul(tape, wide, scale), dtype))


def _converted(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """A conversion the module asks for: a host operator even where nothing changes."""
    if x.dtype != dtype:
        return cast(tape, x, dtype)
    with tape.op("aten::to", (x,)):
        return x


def mean_last(tape: Tape, x: Tensor) -> Tensor:
    """The mean over the last dimension, kept as size 1."""
    out = Tensor.new((*x.shape[:-1], 1), x.dtype)

    def rule(grad: Tensor) -> Grads:
        wide = grad.alias(x.shape, (*grad.strides[:-1], 0))
        return (emit(tape, "div", (wide,), Tensor.new(x.shape, x.dtype)),)

    return tape.function("aten::mean", (x,), out, rule, row_kernel("reduce", x), node="MeanBackward1")


@operator
def cross_entropy(tape: Tape, logits: Tensor, target: Tensor) -> Tensor:
    """Mean negative log likelihood of ``target`` under softmax(``logits``)."""
    with tape.op("aten::cross_entropy_loss", (logits, target)):
        logits = raised(tape, logits)
        logp = _softmax(tape, logits, "_log_softmax")
        loss, weight = Tensor.new((), logits.dtype), Tensor.new((), logits.dtype)

        def rule(grad: Tensor) -> Grads:
            kernel = row_kernel("nll_loss_backward", logits)
            tape.call("aten::nll_loss_backward", (grad, logp, target, weight), kernel)
            return (Tensor.new(logits.shape, logits.dtype),)

        return tape.function(
            "aten::nll_loss_forward", (logp, target), loss, rule, row_kernel("nll_loss", logits),
            of=(logp,), node="NllLossBackward0",
        )  # fmt: skip


def pointwise_loss(tape: Tape, name: str, x: Tensor, target: Tensor) -> Tensor:
    """mse_loss, binary_cross_entropy (with or without logits): mean over all elements."""
    with tape.op(f"aten::{name}", (x, target)):
        x = raised(tape, x)
        loss = Tensor.new((), x.dtype)

        def rule(grad: Tensor) -> Grads:
            if name == "binary_cross_entropy_with_logits":
                return (_logits_gradient(tape, grad, x, target),)
            return (emit(tape, f"{name}_backward", (grad, x, target), x.empty_like()),)

        kernels = loss_kernels(name, x)
        return tape.function(f"aten::{name}", (x, target), loss, rule, *kernels, of=(x,), saves=(x,))


def _logits_gradient(tape: Tape, grad: Tensor, x: Tensor, target: Tensor) -> Tensor:
    probability = emit(tape, "sigmoid", (x,), x.empty_like())
    difference = emit(tape, "sub", (probability, target), x.empty_like())
    scaled = emit(tape, "mul", (difference, grad), like((difference, grad)))
    return emit(tape, "div", (scaled,), scaled.empty_like(), "div_")
