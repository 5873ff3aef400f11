"""GPT-2: pre-norm decoder with Conv1D projections, gelu written out, and a tied head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepsight.workload.matmuls import addmm, linear
from stepsight.workload.norms import cross_entropy
from stepsight.workload.pointwise import add, dropout, mul, scalar, tanh
from stepsight.workload.tape import Tape
from stepsight.workload.tensor import Tensor
from stepsight.workload.transformer_config import TransformerConfig
from stepsight.workload.transformers.blocks import (
    Pair,
    attend,
    buffer,
    embedding,
    flash_attention,
    masked_fill,
    norm,
    norm_pair,
    residual,
    scaled_scores,
    split_heads,
)
from stepsight.workload.views import contiguous, narrow, permute, reshape, split, transpose, view


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder block's parameters; projections are in × out (Conv1D)."""

    first_norm: Pair
    attention: Pair
    attention_out: Pair
    second_norm: Pair
    fc: Pair
    fc_out: Pair

    @classmethod
    def register(cls, tape: Tape, name: str, c: TransformerConfig) -> Block:
        h, f = c.hidden, c.ffn
        return cls(
            norm_pair(tape, f"{name}.ln_1", h), _conv1d(tape, f"{name}.c_attn", h, 3 * h),
            _conv1d(tape, f"{name}.c_proj", h, h), norm_pair(tape, f"{name}.ln_2", h),
            _conv1d(tape, f"{name}.c_fc", h, f), _conv1d(tape, f"{name}.mlp_proj", f, h),
        )  # fmt: skip


def _conv1d(tape: Tape, name: str, into: int, out: int) -> Pair:
    return Pair(tape.parameter(f"{name}.weight", into, out), tape.parameter(f"{name}.bias", out))


def conv1d(tape: Tape, x: Tensor, pair: Pair) -> Tensor:
    """GPT-2's linear layer: addmm over flattened tokens."""
    flat = view(tape, x, -1, x.shape[-1])
    return view(tape, addmm(tape, pair.bias, flat, pair.weight), *x.shape[:-1], pair.weight.shape[1])


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), each operator on its own as GPT-2 writes it."""
    half = scalar(tape, "mul", x)
    inner = scalar(tape, "mul", add(tape, x, scalar(tape, "mul", scalar(tape, "pow", x))))
    return mul(tape, half, scalar(tape, "add", tanh(tape, inner)))


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    tokens = tape.parameter("wte", c.vocab, c.hidden)
    positions = tape.parameter("wpe", c.sequence, c.hidden)
    blocks = [Block.register(tape, f"h.{i}", c) for i in range(c.layers)]
    last_norm = norm_pair(tape, "ln_f", c.hidden)

    def forward() -> Tensor:
        ids = buffer((c.batch_per_rank, c.sequence), "int64")
        with tape.scope("embeddings"):
            x = add(
                tape,
                embedding(tape, tokens, ids),
                embedding(tape, positions, buffer((1, c.sequence), "int64")),
            )
            x = dropout(tape, x, c.training.dropout)
        for i, block in enumerate(blocks):
            with tape.scope(f"block {i}"):
                x = _block(tape, c, block, x)
        with tape.scope("head"):
            x = norm(tape, x, last_norm)
            return lm_head(tape, c, x, tokens)

    return forward


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


def _block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    p = c.training.dropout
    qkv = conv1d(tape, norm(tape, x, block.first_norm), block.attention)
    q, k, v = (
        split_heads(tape, part, c.heads) for part in split(tape, qkv, (c.hidden,) * 3, 2, "aten::split")
    )
    if c.training.attention == "flash":
        context = reshape(tape, transpose(tape, flash_attention(tape, q, k, v, causal=True), 1, 2), *x.shape)
    else:
        mask = buffer((1, 1, c.sequence, c.sequence), "bool")
        context = attend(tape, masked_fill(tape, scaled_scores(tape, q, k), mask, buffer(())), v, p)
        context = view(tape, contiguous(tape, permute(tape, context, 0, 2, 1, 3)), *x.shape)
    x = residual(tape, x, conv1d(tape, context, block.attention_out), p)
    hidden = gelu_new(tape, conv1d(tape, norm(tape, x, block.second_norm), block.fc))
    return residual(tape, x, conv1d(tape, hidden, block.fc_out), p)
