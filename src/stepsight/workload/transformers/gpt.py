"""GPT with linear layers (GPT-3 and its kin) and OPT: pre-norm decoders with a tied head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepsight.workload.pointwise import add, dropout, gelu, relu
from stepsight.workload.tape import Tape
from stepsight.workload.tensor import Tensor
from stepsight.workload.transformer_config import TransformerConfig
from stepsight.workload.transformers.blocks import (
    Pair,
    attend,
    buffer,
    dense,
    embedding,
    flash_attention,
    linear_pair,
    norm,
    norm_pair,
    residual,
    scaled_scores,
    split_heads,
)
from stepsight.workload.transformers.gpt2 import lm_head
from stepsight.workload.views import contiguous, permute, reshape, split, transpose, view


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder block. ``qkv`` is one projection (GPT) or three (OPT)."""

    first_norm: Pair
    qkv: tuple[Pair, ...]
    attention_out: Pair
    second_norm: Pair
    fc: Pair
    fc_out: Pair

    @classmethod
    def register(cls, tape: Tape, name: str, c: TransformerConfig) -> Block:
        h, f = c.hidden, c.ffn
        widths = (h, h, h) if c.family == "opt" else (3 * h,)
        first = norm_pair(tape, f"{name}.first_norm", h)
        qkv = tuple(linear_pair(tape, f"{name}.qkv.{i}", width, h) for i, width in enumerate(widths))
        return cls(
            first, qkv, linear_pair(tape, f"{name}.attention_out", h, h),
            norm_pair(tape, f"{name}.second_norm", h), linear_pair(tape, f"{name}.fc", f, h),
            linear_pair(tape, f"{name}.fc_out", h, f),
        )  # fmt: skip


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    tokens = tape.parameter("tokens", c.vocab, c.hidden)
    positions = tape.parameter("positions", c.sequence, c.hidden)
    blocks = [Block.register(tape, f"block.{i}", c) for i in range(c.layers)]
    last_norm = norm_pair(tape, "last_norm", c.hidden)

    def forward() -> Tensor:
        with tape.scope("embeddings"):
            ids = buffer((c.batch_per_rank, c.sequence), "int64")
            x = add(
                tape,
                embedding(tape, tokens, ids),
                embedding(tape, positions, buffer((1, c.sequence), "int64")),
            )
            x = dropout(tape, x, c.training.dropout)
        for i, block in enumerate(blocks):
            with tape.scope(f"block {i}"):
                x = decoder_block(tape, c, block, x)
        with tape.scope("head"):
            return lm_head(tape, c, norm(tape, x, last_norm), tokens)

    return forward


def decoder_block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    p = c.training.dropout
    y = norm(tape, x, block.first_norm)
    parts = [dense(tape, y, pair) for pair in block.qkv]
    if len(parts) == 1:
        parts = split(tape, parts[0], (c.hidden,) * 3, 2, "aten::split")
    q, k, v = (split_heads(tape, part, c.heads) for part in parts)
    if c.training.attention == "flash":
        context = reshape(tape, transpose(tape, flash_attention(tape, q, k, v, causal=True), 1, 2), *x.shape)
    else:
        mask = buffer((1, 1, c.sequence, c.sequence))
        context = attend(tape, add(tape, scaled_scores(tape, q, k), mask), v, p)
        context = view(tape, contiguous(tape, permute(tape, context, 0, 2, 1, 3)), *x.shape)
    x = residual(tape, x, dense(tape, context, block.attention_out), p)
    activation = relu if c.family == "opt" else gelu
    hidden = activation(tape, dense(tape, norm(tape, x, block.second_norm), block.fc))
    return residual(tape, x, dense(tape, hidden, block.fc_out), p)
