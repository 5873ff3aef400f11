"""What the transformer families share: parameters, token embeddings, attention cores, heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepsight.program.aten.movement import gather_kernel, scatter_kernels
from stepsight.program.aten.products import attention_kernel
from stepsight.program.job import Kernel
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.operators.matmuls import linear, matmul
from stepsight.workload.operators.norms import layer_norm, softmax
from stepsight.workload.operators.pointwise import add, dropout, emit, like, lowered, scalar
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, given, permute, reshape, swapped, transpose, view


@dataclass(frozen=True, slots=True)
class Pair:
    """Weight and bias."""

    weight: Tensor
    bias: Tensor


def linear_pair(tape: Tape, name: str, out: int, into: int) -> Pair:
    """An nn.Linear's parameters."""
    return Pair(tape.parameter(f"{name}.weight", out, into), tape.parameter(f"{name}.bias", out))


def norm_pair(tape: Tape, name: str, size: int) -> Pair:
    """An nn.LayerNorm's parameters."""
    return Pair(tape.parameter(f"{name}.weight", size), tape.parameter(f"{name}.bias", size))


def dense(tape: Tape, x: Tensor, pair: Pair) -> Tensor:
    return linear(tape, x, pair.weight, pair.bias)


def norm(tape: Tape, x: Tensor, pair: Pair) -> Tensor:
    return layer_norm(tape, x, pair.weight, pair.bias)


def buffer(shape: Sequence[int], dtype: str = "fp32") -> Tensor:
    """An input or a constant that lives on the device."""
    return Tensor.new(shape, dtype, persistent=True)


def constant(tape: Tape, shape: Sequence[int]) -> Tensor:
    """A floating-point buffer of the module: ``module.to(dtype)`` converts it with the parameters."""
    return Tensor.new(shape, tape.parameter_dtype, persistent=True)


def embedding(tape: Tape, weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of ``weight`` picked by ``ids``; the gradient is dense."""
    rows, cols = weight.shape
    with tape.op("aten::embedding", (weight, ids)):
        out = Tensor.new((*ids.shape, cols), weight.dtype)
        tape.call("aten::embedding", (weight, ids), gather_kernel(weight, ids.elements))

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            kernels = scatter_kernels(weight.dtype, ids.elements, cols, rows)
            if tape.device != "cuda":  # only a GPU sorts long index lists first
                kernels = kernels[-1:]
            tape.call("aten::embedding_dense_backward", (given(g[0]), ids), *kernels)
            return (Tensor.new(weight.shape, weight.dtype),)

        tape.record("EmbeddingBackward0", (weight,), (out,), rule)
    return out


def split_heads(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """batch × sequence × hidden as batch × heads × sequence × head_dim (a view)."""
    batch, sequence, hidden = x.shape
    return transpose(tape, view(tape, x, batch, sequence, heads, hidden // heads), 1, 2)


def masked_fill(tape: Tape, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """torch.where(mask, x, value), as GPT-2 hides the future."""
    with tape.op("aten::where", (mask, x, value)):
        out = emit(tape, "where", (mask, x, value), like((x, mask)))

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            grad = given(g[0])
            tape.call("aten::scalar_tensor", (), Kernel.of("fill", grad.dtype, bytes=4))
            return (emit(tape, "where", (mask, grad, Tensor.new(())), grad.empty_like()),)

        tape.record("WhereBackward0", (x,), (out,), rule)
    return out


def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """scaled_dot_product_attention by its fused kernel; batch × heads × sequence × head_dim in and out."""
    batch, heads, length = q.shape[:3]

    def kernel(family: str) -> Kernel:
        return attention_kernel(family, q, k, causal)

    suffix = "_for_cpu" if tape.device == "cpu" else ""
    name = f"aten::_scaled_dot_product_flash_attention{suffix}"
    node = "ScaledDotProductFlashAttention" + ("ForCpu" if suffix else "") + "Backward0"
    with tape.op("aten::scaled_dot_product_attention", (q, k, v)):
        v, k, q = lowered(tape, v), lowered(tape, k), lowered(tape, q)
        out = _merged_layout(q)
        logsumexp = Tensor.new((batch, heads, length), "fp32")
        tape.call(name, (q, k, v), kernel("attention"))
        tape.save(q, k, v, out, logsumexp)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            tape.call(
                f"{name}_backward", (given(g[0]), q, k, v, out, logsumexp), kernel("attention_backward")
            )
            return [_merged_layout(x) for x in (q, k, v)]

        tape.record(node, (q, k, v), (out,), rule)
    return out


def _merged_layout(x: Tensor) -> Tensor:
    """What the fused kernels write: batch × sequence × heads × head_dim, seen transposed."""
    batch, heads, length, head_dim = x.shape
    return swapped(Tensor.new((batch, length, heads, head_dim), x.dtype), 1, 2)


def scaled_scores(tape: Tape, q: Tensor, k: Tensor) -> Tensor:
    """q · kᵀ / √d."""
    return scalar(tape, "div", matmul(tape, q, transpose(tape, k, -1, -2)))


def attend(tape: Tape, scores: Tensor, v: Tensor, probability: float) -> Tensor:
    """softmax, dropout, product with the values."""
    return matmul(tape, dropout(tape, softmax(tape, scores), probability), v)


def residual(tape: Tape, x: Tensor, update: Tensor, probability: float) -> Tensor:
    """x + dropout(update)."""
    return add(tape, dropout(tape, update, probability), x)


def merge_heads(tape: Tape, context: Tensor) -> Tensor:
    """batch × heads × sequence × head_dim copied to batch × sequence × hidden."""
    batch, heads, sequence, dim = context.shape
    return view(tape, contiguous(tape, permute(tape, context, 0, 2, 1, 3)), batch, sequence, heads * dim)


def causal_attention(
    tape: Tape, c: TransformerConfig, q: Tensor, k: Tensor, v: Tensor, mask: Callable[[Tensor], Tensor]
) -> Tensor:
    """Attention that sees no future, by the fused kernel or operator by operator with ``mask``."""
    if c.training.attention == "flash":
        context = transpose(tape, flash_attention(tape, q, k, v, causal=True), 1, 2)
        return reshape(tape, context, q.shape[0], q.shape[2], q.shape[1] * q.shape[3])
    return merge_heads(tape, attend(tape, mask(scaled_scores(tape, q, k)), v, c.training.dropout))
