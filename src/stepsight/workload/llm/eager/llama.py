"""Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU, untied head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepsight.workload.llm.eager.blocks import (
    buffer,
    constant,
    embedding,
    flash_attention,
    kept_or_run_again,
    lm_head,
    split_heads,
)
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.operators.matmuls import linear, matmul
from stepsight.workload.operators.norms import rms_norm, softmax
from stepsight.workload.operators.pointwise import add, dropout, mul, negate, scalar, silu
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cat, contiguous, expand, narrow, reshape, transpose, unsqueeze

Layer = dict[str, Tensor]


def _layer_parameters(tape: Tape, name: str, c: TransformerConfig) -> Layer:
    """Projections without biases, out × in."""
    h, f, kv = c.hidden, c.ffn, c.kv_heads * c.head_dim
    sizes = {"q": (h, h), "k": (kv, h), "v": (kv, h), "o": (h, h), "gate": (f, h), "up": (f, h),
             "down": (h, f), "input_norm": (h,), "post_norm": (h,)}  # fmt: skip
    return {key: tape.parameter(f"{name}.{key}", *shape) for key, shape in sizes.items()}


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    tokens = tape.parameter("tokens", c.vocab, c.hidden)
    layers = [_layer_parameters(tape, f"layer.{i}", c) for i in range(c.layers)]
    last_norm = tape.parameter("norm", c.hidden)
    head = tape.parameter("lm_head", c.vocab, c.hidden) if c.head == "lm" else last_norm

    def forward() -> Tensor:
        with tape.scope("embeddings"):
            x = embedding(tape, tokens, buffer((c.batch_per_rank, c.sequence), "int64"))
        for i, layer in enumerate(layers):
            with tape.scope(f"layer {i}"):
                x = kept_or_run_again(tape, c, partial(_layer, tape, c, layer), x)
        with tape.scope("head"):
            return lm_head(tape, c, rms_norm(tape, x, last_norm), head)

    return forward


def _layer(tape: Tape, c: TransformerConfig, layer: Layer, x: Tensor) -> Tensor:
    x = add(tape, x, _attention(tape, c, layer, rms_norm(tape, x, layer["input_norm"])))
    return add(tape, x, _mlp(tape, layer, rms_norm(tape, x, layer["post_norm"])))


def _attention(tape: Tape, c: TransformerConfig, layer: Layer, x: Tensor) -> Tensor:
    q = split_heads(tape, linear(tape, x, layer["q"]), c.heads)
    k = split_heads(tape, linear(tape, x, layer["k"]), c.kv_heads)
    v = split_heads(tape, linear(tape, x, layer["v"]), c.kv_heads)
    angles = (1, 1, c.sequence, c.head_dim)
    cos, sin = constant(tape, angles), constant(tape, angles)
    q, k = rotated(tape, q, cos, sin), rotated(tape, k, cos, sin)
    k, v = repeated(tape, k, c.heads), repeated(tape, v, c.heads)
    if c.training.attention == "flash":
        context = flash_attention(tape, q, k, v, causal=True)
    else:
        scores = scalar(tape, "mul", matmul(tape, q, transpose(tape, k, 2, 3)))
        scores = add(tape, scores, constant(tape, (1, 1, c.sequence, c.sequence)))
        context = matmul(tape, dropout(tape, softmax(tape, scores), c.training.dropout), v)
    context = contiguous(tape, transpose(tape, context, 1, 2))
    return linear(tape, reshape(tape, context, *x.shape), layer["o"])


def rotated(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + rotate_half(x) · sin."""
    half = x.shape[-1] // 2
    straight = mul(tape, x, cos)
    first, second = narrow(tape, x, -1, half), narrow(tape, x, -1, half)
    turned = cat(tape, (negate(tape, second), first), -1)
    return add(tape, straight, mul(tape, turned, sin))


def repeated(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """Each key or value head once for every query head of its group."""
    batch, kv_heads, sequence, dim = x.shape
    if kv_heads == heads:
        return x
    wide = expand(tape, unsqueeze(tape, x, 2), batch, kv_heads, heads // kv_heads, sequence, dim)
    return reshape(tape, wide, batch, heads, sequence, dim)


def _mlp(tape: Tape, layer: Layer, x: Tensor) -> Tensor:
    gated = silu(tape, linear(tape, x, layer["gate"]))
    return linear(tape, mul(tape, gated, linear(tape, x, layer["up"])), layer["down"])
