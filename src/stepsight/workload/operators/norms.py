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
        x = _raised_on_gpu(tape, x)
        out = Tensor.new(x.shape, x.dtype)
        tape.call("aten::_softmax", (x,), row_kernel("softmax", x))
        tape.save(out)

        def rule(grad: Tensor) -> Grads:
            kernel = row_kernel("softmax_backward", x)
            tape.call("aten::_softmax_backward_data", (grad, out), kernel)
            return (Tensor.new(x.shape, x.dtype),)

        tape.record("SoftmaxBackward0", (x,), (out,), rule)
    return out


@operator
def layer_norm(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with tape.op("aten::layer_norm", (x, weight, bias)):
        x = _raised_on_gpu(tape, x)
        out = Tensor.new(x.shape, x.dtype)
        tape.call("aten::native_layer_norm", (x, weight, bias), row_kernel("layer_norm", x))
        mean = Tensor.new((*x.shape[:-1], 1), "fp32")
        rstd = Tensor.new((*x.shape[:-1], 1), "fp32")
        tape.save(x, mean, rstd)

        def rule(grad: Tensor) -> Grads:
            kernels = [row_kernel("layer_norm_backward", x)]
            if tape.device == "cuda":  # the gradients of weight and bias are a second kernel there
                kernels.append(row_kernel("layer_norm_weights", x))
            inputs = (grad, x, mean, rstd, weight, bias)
            tape.call("aten::native_layer_norm_backward", inputs, *kernels)
            dx = Tensor.new(x.shape, x.dtype) if x.requires_grad else None
            return dx, Tensor.new(weight.shape, weight.dtype), Tensor.new(bias.shape, bias.dtype)

        tape.record("NativeLayerNormBackward0", (x, weight, bias), (out,), rule)
    return out


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
    with tape.op("aten::mean", (x,)):
        out = Tensor.new((*x.shape[:-1], 1), x.dtype)
        tape.call("aten::mean", (x,), row_kernel("reduce", x))

        def rule(grad: Tensor) -> Grads:
            wide = grad.alias(x.shape, (*grad.strides[:-1], 0))
            return (emit(tape, "div", (wide,), Tensor.new(x.shape, x.dtype)),)

        tape.record("MeanBackward1", (x,), (out,), rule)
    return out


@operator
def cross_entropy(tape: Tape, logits: Tensor, target: Tensor) -> Tensor:
    """Mean negative log likelihood of ``target`` under softmax(``logits``)."""
    with tape.op("aten::cross_entropy_loss", (logits, target)):
        logits = raised(tape, logits)
        logp = Tensor.new(logits.shape, logits.dtype)
        tape.call("aten::_log_softmax", (logits,), row_kernel("softmax", logits))
        tape.save(logp)

        def softmax_rule(grad: Tensor) -> Grads:
            kernel = row_kernel("softmax_backward", logits)
            tape.call("aten::_log_softmax_backward_data", (grad, logp), kernel)
            return (Tensor.new(logits.shape, logits.dtype),)

        tape.record("LogSoftmaxBackward0", (logits,), (logp,), softmax_rule)
        loss, weight = Tensor.new((), logits.dtype), Tensor.new((), logits.dtype)
        tape.call("aten::nll_loss_forward", (logp, target), row_kernel("nll_loss", logits))

        def nll_rule(grad: Tensor) -> Grads:
            kernel = row_kernel("nll_loss_backward", logits)
            tape.call("aten::nll_loss_backward", (grad, logp, target, weight), kernel)
            return (Tensor.new(logits.shape, logits.dtype),)

        tape.record("NllLossBackward0", (logp,), (loss,), nll_rule)
    return loss


def pointwise_loss(tape: Tape, name: str, node: str, x: Tensor, target: Tensor) -> Tensor:
    """mse_loss, binary_cross_entropy (with or without logits): mean over all elements."""
    with tape.op(f"aten::{name}", (x, target)):
        x = raised(tape, x)
        loss = Tensor.new((), x.dtype)
        tape.call(f"aten::{name}", (x, target), *loss_kernels(name, x))
        tape.save(x)

        def rule(grad: Tensor) -> Grads:
            if name == "binary_cross_entropy_with_logits":
                return (_logits_gradient(tape, grad, x, target),)
            return (emit(tape, f"{name}_backward", (grad, x, target), x.empty_like()),)

        tape.record(node, (x,), (loss,), rule)
    return loss


def _logits_gradient(tape: Tape, grad: Tensor, x: Tensor, target: Tensor) -> Tensor:
    probability = emit(tape, "sigmoid", (x,), x.empty_like())
    difference = emit(tape, "sub", (probability, target), x.empty_like())
    scaled = emit(tape, "mul", (difference, grad), like((difference, grad)))
    return emit(tape, "div", (scaled,), scaled.empty_like(), "div_")
