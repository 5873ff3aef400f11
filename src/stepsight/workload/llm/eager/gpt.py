"""GPT with linear layers (GPT-3 and its kin) and OPT: pre-norm decoders with a tied head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepsight.workload.llm.eager.blocks import (
    Pair,
    causal_attention,
    constant,
    dense,
    linear_pair,
    norm,
    norm_pair,
    residual,
    split_heads,
)
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.llm.eager.decoder import decoder
from stepsight.workload.llm.eager.tensor_parallel import enter, leave
from stepsight.workload.operators.pointwise import add, gelu, relu
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import split


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
        h, f, t = c.hidden, c.ffn, c.tensor
        widths = (h // t,) * 3 if c.family == "opt" else (3 * h // t,)
        first = norm_pair(tape, f"{name}.first_norm", h)
        qkv = tuple(linear_pair(tape, f"{name}.qkv.{i}", width, h) for i, width in enumerate(widths))
        return cls(
            first, qkv, linear_pair(tape, f"{name}.attention_out", h, h // t),
            norm_pair(tape, f"{name}.second_norm", h), linear_pair(tape, f"{name}.fc", f // t, h),
            linear_pair(tape, f"{name}.fc_out", h, f // t),
        )  # fmt: skip


def model(tape: Tape, c: TransformerConfig, part: StagePart) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    return decoder(
        tape, c, part, lambda name: Block.register(tape, name, c), lambda block, x: _block(tape, c, block, x)
    )


def _block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    p, t = c.training.dropout, c.tensor
    y = enter(tape, norm(tape, x, block.first_norm), t)
    parts = [dense(tape, y, pair) for pair in block.qkv]
    if len(parts) == 1:
        parts = split(tape, parts[0], (c.hidden // t,) * 3, 2, "aten::split")
    q, k, v = (split_heads(tape, part, c.heads // t) for part in parts)
    mask = constant(tape, (1, 1, c.sequence, c.sequence))
    context = causal_attention(tape, c, q, k, v, lambda scores: add(tape, scores, mask))
    x = residual(tape, x, leave(tape, dense(tape, context, block.attention_out), t), p)
    activation = relu if c.family == "opt" else gelu
    hidden = activation(tape, dense(tape, enter(tape, norm(tape, x, block.second_norm), t), block.fc))
    return residual(tape, x, leave(tape, dense(tape, hidden, block.fc_out), t), p)
