"""GPT as Megatron runs it: fused softmax, bias-gelu and bias-dropout-add, vocabulary-parallel ends.

Tensors are sequence first. Attention, embeddings and logits are split over the tensor
group; each layer sums over the group twice forward and twice backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from stepsight.program.job import Kernel
from stepsight.workload.operators.matmuls import bmm, linear
from stepsight.workload.operators.pointwise import add, dropout, emit, like
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import (
    cast,
    contiguous,
    given,
    permute,
    reshape,
    split,
    transpose,
    view,
)
from stepsight.workload.parallel.tensor_parallel import all_reduce, enter, leave
from stepsight.workload.transformers.blocks import (
    Pair,
    buffer,
    dense,
    embedding,
    flash_attention,
    linear_pair,
    norm,
    norm_pair,
)
from stepsight.workload.transformers.config import StagePart, TransformerConfig
from stepsight.workload.transformers.decoder import stack


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's share of one rank."""

    first_norm: Pair
    qkv: Pair
    attention_out: Pair
    second_norm: Pair
    fc: Pair
    fc_out: Pair

    @classmethod
    def register(cls, tape: Tape, name: str, c: TransformerConfig) -> Block:
        h, f, t = c.hidden, c.ffn, c.tensor
        return cls(
            norm_pair(tape, f"{name}.first_norm", h), linear_pair(tape, f"{name}.qkv", 3 * h // t, h),
            linear_pair(tape, f"{name}.attention_out", h, h // t), norm_pair(tape, f"{name}.second_norm", h),
            linear_pair(tape, f"{name}.fc", f // t, h), linear_pair(tape, f"{name}.fc_out", h, f // t),
        )  # fmt: skip


def padded_vocab(c: TransformerConfig) -> int:
    """Megatron pads the vocabulary to a multiple of 128 on every rank."""
    step = 128 * c.tensor
    return -(-c.vocab // step) * step


def model(tape: Tape, c: TransformerConfig, part: StagePart) -> Callable[[], Tensor]:
    """Registers one rank's parameters; the result runs the forward pass to the loss (or the output)."""
    share = padded_vocab(c) // c.tensor
    words = tape.parameter("words", share, c.hidden) if part.first or part.last else None
    positions = tape.parameter("positions", c.sequence, c.hidden) if part.first else None
    blocks = [Block.register(tape, f"block.{i}", c) for i in range(part.layers)]
    last_norm = norm_pair(tape, "last_norm", c.hidden) if part.last else None

    def forward() -> Tensor:
        with tape.scope("embeddings"):
            x = _embeddings(tape, c, words, positions)
        x = stack(tape, c, blocks, lambda block, y: _block(tape, c, block, y), x)
        if last_norm is None or words is None or c.head == "none":
            return x
        with tape.scope("head"):
            logits = linear(tape, enter(tape, norm(tape, x, last_norm), c.tensor), words)
            return logits if c.training.loss == "none" else _parallel_loss(tape, c, logits)

    return forward


def _embeddings(tape: Tape, c: TransformerConfig, words: Tensor | None, positions: Tensor | None) -> Tensor:
    if words is None or positions is None:
        return tape.received(c.sequence, c.batch_per_rank, c.hidden)
    ids = buffer((c.batch_per_rank, c.sequence), "int64")
    x = leave(tape, embedding(tape, words, ids), c.tensor)
    x = add(tape, x, embedding(tape, positions, buffer((1, c.sequence), "int64")))
    return dropout(tape, contiguous(tape, transpose(tape, x, 0, 1)), c.training.dropout)


def _block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    t = c.tensor
    qkv = dense(tape, enter(tape, norm(tape, x, block.first_norm), t), block.qkv)
    context = _attention(tape, c, qkv)
    update = leave(tape, linear(tape, context, block.attention_out.weight), t)
    x = bias_dropout_add(tape, update, block.attention_out.bias, x)
    y = enter(tape, norm(tape, x, block.second_norm), t)
    hidden = bias_gelu(tape, linear(tape, y, block.fc.weight), block.fc.bias)
    update = leave(tape, linear(tape, hidden, block.fc_out.weight), t)
    return bias_dropout_add(tape, update, block.fc_out.bias, x)


def _attention(tape: Tape, c: TransformerConfig, qkv: Tensor) -> Tensor:
    length, batch, _ = qkv.shape
    heads, dim = c.heads // c.tensor, c.head_dim
    mixed = view(tape, qkv, length, batch, heads, 3 * dim)
    q, k, v = split(tape, mixed, (dim,) * 3, 3, "aten::split")
    if c.training.attention == "flash":
        parts = [permute(tape, part, 1, 2, 0, 3) for part in (q, k, v)]
        context = permute(tape, flash_attention(tape, *parts, causal=True), 2, 0, 1, 3)
        return reshape(tape, context, length, batch, heads * dim)
    q, k, v = (reshape(tape, part, length, batch * heads, dim) for part in (q, k, v))
    scores = bmm(tape, transpose(tape, q, 0, 1), permute(tape, k, 1, 2, 0))
    probabilities = dropout(tape, scaled_masked_softmax(tape, scores), c.training.dropout)
    context = view(tape, bmm(tape, probabilities, transpose(tape, v, 0, 1)), batch, heads, length, dim)
    return view(tape, contiguous(tape, permute(tape, context, 2, 0, 1, 3)), length, batch, heads * dim)


def scaled_masked_softmax(tape: Tape, scores: Tensor) -> Tensor:
    """Scale, causal mask and softmax in one kernel that reads only what the mask lets through."""
    with tape.op("ScaledUpperTriangMaskedSoftmax", (scores,)):
        out = Tensor.new(scores.shape, scores.dtype)
        tape.call("megatron::scaled_masked_softmax", (scores,), _triangle("scaled_masked_softmax", scores, 1))
        tape.save(out)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            kernel = _triangle("scaled_masked_softmax_backward", scores, 2)
            tape.call("megatron::scaled_masked_softmax_backward", (given(g[0]), out), kernel)
            return (Tensor.new(scores.shape, scores.dtype),)

        tape.record("ScaledUpperTriangMaskedSoftmaxBackward", (scores,), (out,), rule)
    return out


def _triangle(name: str, x: Tensor, reads: int) -> Kernel:
    """One pass: half of each input is read, all of the output is written."""
    return Kernel.of(
        "elementwise",
        x.dtype,
        name=name,
        elements=x.elements,
        read_bytes=reads * x.bytes / 2,
        write_bytes=x.bytes,
    )


def bias_gelu(tape: Tape, x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) in one kernel each way; the bias gradient is a sum."""
    with tape.op("GeLUFunction", (x, bias)):
        out = emit(tape, "bias_gelu", (x, bias), x.empty_like())
        tape.save(x)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            inputs = (given(g[0]), x, bias)
            grad = emit(tape, "bias_gelu_backward", inputs, like(inputs))
            return grad, grad

        tape.record("GeLUFunctionBackward", (x, bias), (out,), rule)
    return out


def bias_dropout_add(tape: Tape, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """residual + dropout(x + bias) in one kernel each way."""
    with tape.op("bias_dropout_add_fused", (x, bias, residual)):
        out = emit(tape, "bias_dropout_add", (x, bias, residual), x.empty_like())
        mask = x.empty_like("bool")
        tape.save(mask)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            grad = emit(tape, "bias_dropout_add_backward", (given(g[0]), mask), x.empty_like())
            return grad, grad, given(g[0])

        tape.record("BiasDropoutAddBackward", (x, bias, residual), (out,), rule)
    return out


def _parallel_loss(tape: Tape, c: TransformerConfig, logits: Tensor) -> Tensor:
    """Cross entropy over a split vocabulary: three small sums over the group, five passes over the logits."""
    wide = cast(tape, logits, "fp32")
    rows = Tensor.new(wide.shape[:-1], "fp32")
    with tape.op("_VocabParallelCrossEntropy", (wide,)):
        _rows(tape, "max", wide)
    _summed(tape, c, rows)
    with tape.op("_VocabParallelCrossEntropy", (wide,)):
        emit(tape, "sub", (wide, rows), wide)
        emit(tape, "index", (rows,), rows)
    _summed(tape, c, rows)
    with tape.op("_VocabParallelCrossEntropy", (wide,)):
        emit(tape, "exp", (wide,), wide)
        _rows(tape, "sum", wide)
    _summed(tape, c, rows)
    with tape.op("_VocabParallelCrossEntropy", (wide,)):
        emit(tape, "div", (wide, rows), wide)
        tape.save(wide)
        loss = Tensor.new((), "fp32")
        tape.call("aten::mean", (rows,), Kernel.of("reduce", rows=1, cols=rows.elements))

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            emit(tape, "sub", (rows,), rows)
            return (emit(tape, "mul", (wide, rows), wide.empty_like()),)

        tape.record("_VocabParallelCrossEntropyBackward", (wide,), (loss,), rule)
    return loss


def _rows(tape: Tape, name: str, x: Tensor) -> None:
    kernel = Kernel.of("reduce", x.dtype, name=name, rows=prod(x.shape[:-1]), cols=x.shape[-1])
    tape.call(f"aten::{name}", (x,), kernel)


def _summed(tape: Tape, c: TransformerConfig, rows: Tensor) -> None:
    if c.tensor > 1:
        all_reduce(tape, rows)
