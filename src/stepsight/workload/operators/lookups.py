"""Rows, columns and elements picked by an index or a mask."""

from __future__ import annotations

from stepsight.program.aten.movement import fill_kernel, gather_kernel, pointwise_kernel, scatter_kernels
from stepsight.program.job import Kernel
from stepsight.workload.operators.pointwise import emit, like
from stepsight.workload.operators.tape import Grads, Tape, operator
from stepsight.workload.operators.tensor import Tensor


@operator
def embedding(tape: Tape, weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of ``weight`` picked by ``ids``; the gradient is dense."""
    rows, cols = weight.shape
    out = Tensor.new((*ids.shape, cols), weight.dtype)

    def rule(grad: Tensor) -> Grads:
        kernels = scatter_kernels(weight.dtype, ids.elements, cols, rows)
        if tape.device != "cuda":  # only a GPU sorts long index lists first
            kernels = kernels[-1:]
        tape.call("aten::embedding_dense_backward", (grad, ids), *kernels)
        return (Tensor.new(weight.shape, weight.dtype),)

    kernel = gather_kernel(weight, ids.elements)
    return tape.function("aten::embedding", (weight, ids), out, rule, kernel, of=(weight,))


@operator
def masked_fill(tape: Tape, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """torch.where(mask, x, value), as GPT-2 hides the future."""
    inputs, out = (mask, x, value), like((x, mask))

    def rule(grad: Tensor) -> Grads:
        tape.call("aten::scalar_tensor", (), Kernel.of("fill", grad.dtype, bytes=4))
        return (emit(tape, "where", (mask, grad, Tensor.new(())), grad.empty_like()),)

    kernel = pointwise_kernel("where", inputs, out)
    return tape.function("aten::where", inputs, out, rule, kernel, of=(x,))


@operator
def index_select(tape: Tape, x: Tensor, index: Tensor) -> Tensor:
    """Columns picked by an index, as XLNet does."""
    out = Tensor.new((*x.shape[:-1], *index.shape), x.dtype)

    def kernel(name: str, read_bytes: float) -> Kernel:
        return Kernel.of("elementwise", x.dtype, operator=name, elements=out.elements,
                         read_bytes=read_bytes + index.bytes, write_bytes=out.bytes)  # fmt: skip

    def rule(grad: Tensor) -> Grads:
        whole = Tensor.new(x.shape, x.dtype)
        tape.call("aten::new_zeros", (grad,), fill_kernel(whole))
        tape.call("aten::index_add_", (whole, index, grad), kernel("index_add", 2 * out.bytes))
        return (whole,)

    picked = kernel("index_select", out.bytes)
    return tape.function("aten::index_select", (x, index), out, rule, picked, of=(x,))
