"""GPT-2: pre-norm decoder with Conv1D projections, gelu written out, and a tied head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepsight.workload.llm.eager.blocks import (
    Pair,
    buffer,
    causal_attention,
    constant,
    masked_fill,
    norm,
    norm_pair,
    residual,
    split_heads,
)
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.llm.eager.decoder import decoder
from stepsight.workload.llm.eager.tensor_parallel import enter, leave
from stepsight.workload.operators.matmuls import addmm
from stepsight.workload.operators.pointwise import add, mul, scalar, tanh
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import split, view


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
        h, f, t = c.hidden, c.ffn, c.tensor
        return cls(
            norm_pair(tape, f"{name}.ln_1", h), _conv1d(tape, f"{name}.c_attn", h, 3 * h // t),
            _conv1d(tape, f"{name}.c_proj", h // t, h), norm_pair(tape, f"{name}.ln_2", h),
            _conv1d(tape, f"{name}.c_fc", h, f // t), _conv1d(tape, f"{name}.mlp_proj", f // t, h),
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


def model(tape: Tape, c: TransformerConfig, part: StagePart) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    return decoder(
        tape, c, part, lambda name: Block.register(tape, name, c), lambda block, x: _block(tape, c, block, x)
    )


def _block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    p, t = c.training.dropout, c.tensor
    qkv = conv1d(tape, enter(tape, norm(tape, x, block.first_norm), t), block.attention)
    parts = split(tape, qkv, (c.hidden // t,) * 3, 2, "aten::split")
    q, k, v = (split_heads(tape, part, c.heads // t) for part in parts)
    mask = buffer((1, 1, c.sequence, c.sequence), "bool")
    context = causal_attention(
        tape, c, q, k, v, lambda scores: masked_fill(tape, scores, mask, constant(tape, ()))
    )
    x = residual(tape, x, leave(tape, conv1d(tape, context, block.attention_out), t), p)
    hidden = gelu_new(tape, conv1d(tape, enter(tape, norm(tape, x, block.second_norm), t), block.fc))
    return residual(tape, x, leave(tape, conv1d(tape, hidden, block.fc_out), t), p)
