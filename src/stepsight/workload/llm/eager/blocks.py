"""What the transformer families share: parameters, embeddings, attention cores, decoders, tensor groups.

Entering a tensor group copies: the gradient is summed over the group. Leaving sums over the group: the
gradient is copied. A column-parallel layer stands after an entry, a row-parallel one before an exit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stepsight.program.aten.movement import gather_kernel, scatter_kernels
from stepsight.program.aten.products import attention_kernel
from stepsight.program.job import COMM, COMPUTE, Collective, Kernel, Wait
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.operators.matmuls import linear, matmul
from stepsight.workload.operators.norms import cross_entropy, layer_norm, softmax
from stepsight.workload.operators.pointwise import add, dropout, emit, like, lowered, scalar
from stepsight.workload.operators.tape import Grads, Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, narrow, permute, reshape, swapped, transpose, view


@dataclass(frozen=True, slots=True)
class Pair:
    """Weight and bias."""

    weight: Tensor
    bias: Tensor


def pair(tape: Tape, name: str, *shape: int) -> Pair:
    """The parameters of an nn.Linear (outputs × inputs) or of an nn.LayerNorm."""
    return Pair(tape.parameter(f"{name}.weight", *shape), tape.parameter(f"{name}.bias", shape[0]))


def pairs(tape: Tape, name: str, **shapes: tuple[int, ...]) -> dict[str, Pair]:
    """The linear layers and norms of a module, registered in order."""
    return {part: pair(tape, f"{name}.{part}", *shape) for part, shape in shapes.items()}


def dense(tape: Tape, x: Tensor, layer: Pair) -> Tensor:
    return linear(tape, x, layer.weight, layer.bias)


def norm(tape: Tape, x: Tensor, layer: Pair) -> Tensor:
    return layer_norm(tape, x, layer.weight, layer.bias)


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

        def rule(grad: Tensor) -> Grads:
            kernels = scatter_kernels(weight.dtype, ids.elements, cols, rows)
            if tape.device != "cuda":  # only a GPU sorts long index lists first
                kernels = kernels[-1:]
            tape.call("aten::embedding_dense_backward", (grad, ids), *kernels)
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

        def rule(grad: Tensor) -> Grads:
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

        def rule(grad: Tensor) -> Grads:
            tape.call(f"{name}_backward", (grad, q, k, v, out, logsumexp), kernel("attention_backward"))
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


Block = TypeVar("Block")


def decoder(
    tape: Tape, c: TransformerConfig, part: StagePart, register: Callable[[str], Block],
    run: Callable[[Block, Tensor], Tensor],
) -> Callable[[], Tensor]:  # fmt: skip
    """Registers a stage's parameters; the result runs its forward pass to the loss or the last output.

    ``register`` makes the parameters of the block of that name; ``run`` is one block's forward pass.
    """
    tokens = tape.parameter("tokens", c.vocab, c.hidden) if part.first or part.last else None
    positions = tape.parameter("positions", c.sequence, c.hidden) if part.first else None
    blocks = [register(f"block.{i}") for i in range(part.layers)]
    last_norm = pair(tape, "last_norm", c.hidden) if part.last else None

    def forward() -> Tensor:
        x = token_embeddings(tape, c, tokens, positions)
        x = stack(tape, c, blocks, run, x)
        if last_norm is None or tokens is None:
            return x
        with tape.scope("head"):
            return lm_head(tape, c, norm(tape, x, last_norm), tokens)

    return forward


def stack(
    tape: Tape, c: TransformerConfig, blocks: list[Block], run: Callable[[Block, Tensor], Tensor], x: Tensor
) -> Tensor:
    """Block after block, each kept for the backward pass or run again there."""
    for i, block in enumerate(blocks):
        with tape.scope(f"block {i}"):
            x = kept_or_run_again(tape, c, partial(run, block), x)
    return x


def kept_or_run_again(
    tape: Tape, c: TransformerConfig, block: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """One block, whose tensors the backward pass finds kept or makes again (``recompute``)."""
    return tape.checkpoint(block, x) if c.training.recompute else block(x)


def token_embeddings(
    tape: Tape, c: TransformerConfig, tokens: Tensor | None, positions: Tensor | None
) -> Tensor:
    """Token plus position; a later pipeline stage (without ``positions``) receives its input instead."""
    with tape.scope("embeddings"):
        if tokens is None or positions is None:
            return tape.received(c.batch_per_rank, c.sequence, c.hidden)
        ids = buffer((c.batch_per_rank, c.sequence), "int64")
        place = buffer((1, c.sequence), "int64")
        x = add(tape, embedding(tape, tokens, ids), embedding(tape, positions, place))
        return dropout(tape, x, c.training.dropout)


def lm_head(tape: Tape, c: TransformerConfig, x: Tensor, weight: Tensor) -> Tensor:
    """Logits over the vocabulary, shifted by one token, and their cross entropy."""
    if c.head == "none":
        return x
    logits = linear(tape, x, weight)
    if c.training.loss == "none":
        return logits
    shifted = contiguous(tape, narrow(tape, logits, 1, c.sequence - 1))
    flat = view(tape, shifted, -1, c.vocab)
    target = narrow(tape, buffer((c.batch_per_rank, c.sequence), "int64"), 1, c.sequence - 1)
    return cross_entropy(tape, flat, reshape(tape, target, -1))


GROUP = "tensor"


def enter(tape: Tape, x: Tensor, size: int) -> Tensor:
    """The same values on every rank of the group; their gradients are summed."""
    if size == 1:
        return x
    with tape.op("_CopyToModelParallelRegion", (x,)):
        out = x.alias(x.shape, x.strides)

        def rule(grad: Tensor) -> Grads:
            with tape.suspended_op():
                return (all_reduce(tape, grad),)

        tape.record("_CopyToModelParallelRegionBackward", (x,), (out,), rule)
    return out


def leave(tape: Tape, x: Tensor, size: int) -> Tensor:
    """Partial results summed over the group."""
    if size == 1:
        return x
    out = all_reduce(tape, x)
    tape.record("_ReduceFromModelParallelRegionBackward", (x,), (out,), lambda grad: (grad,))
    return out


def all_reduce(tape: Tape, x: Tensor, group: str = GROUP) -> Tensor:
    """Summed in place; the compute stream goes on only afterwards."""
    with tape.op("c10d::allreduce_", (x,)):
        tape.call("c10d::allreduce_", (x,))
        collective = Collective("all_reduce", x.bytes, group, dtype=x.dtype, name="activations")
        started = tape.communicate(collective, Wait(COMM, COMPUTE))
    tape.wait_next(Wait(COMPUTE, started))
    return x.alias(x.shape, x.strides)
