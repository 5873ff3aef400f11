"""GPT decoders, pre-norm with a tied head: GPT-2, GPT with linear layers (GPT-3 and its kin) and OPT."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.workload.llm.eager.blocks import (
    Pair,
    buffer,
    causal_attention,
    constant,
    decoder,
    dense,
    enter,
    leave,
    masked_fill,
    norm,
    pair,
    residual,
    split_heads,
)
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.operators.matmuls import addmm
from stepsight.workload.operators.pointwise import add, gelu, mul, relu, scalar, tanh
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import split, view

Block = dict[str, Pair]


def _block_parameters(tape: Tape, name: str, c: TransformerConfig) -> Block:
    """Queries, keys and values are one projection (GPT) or three (OPT)."""
    h, f, t = c.hidden, c.ffn, c.tensor
    layer = _conv1d_pair if c.family == "gpt2" else pair
    block = {"first_norm": pair(tape, f"{name}.first_norm", h)}
    sizes = {"qkv": (3 * h // t, h)} if c.family != "opt" else dict.fromkeys("qkv", (h // t, h))
    block |= {part: layer(tape, f"{name}.{part}", *size) for part, size in sizes.items()}
    block["attention_out"] = layer(tape, f"{name}.attention_out", h, h // t)
    block["second_norm"] = pair(tape, f"{name}.second_norm", h)
    block["fc"] = layer(tape, f"{name}.fc", f // t, h)
    block["fc_out"] = layer(tape, f"{name}.fc_out", h, f // t)
    return block


def _conv1d_pair(tape: Tape, name: str, out: int, into: int) -> Pair:
    """GPT-2 stores its weights in × out."""
    return Pair(tape.parameter(f"{name}.weight", into, out), tape.parameter(f"{name}.bias", out))


def conv1d(tape: Tape, x: Tensor, layer: Pair) -> Tensor:
    """GPT-2's linear layer: addmm over flattened tokens."""
    flat = view(tape, x, -1, x.shape[-1])
    return view(tape, addmm(tape, layer.bias, flat, layer.weight), *x.shape[:-1], layer.weight.shape[1])


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), each operator on its own as GPT-2 writes it."""
    half = scalar(tape, "mul", x)
    inner = scalar(tape, "mul", add(tape, x, scalar(tape, "mul", scalar(tape, "pow", x))))
    return mul(tape, half, scalar(tape, "add", tanh(tape, inner)))


ACTIVATION = {"gpt2": gelu_new, "gpt": gelu, "opt": relu}


def model(tape: Tape, c: TransformerConfig, part: StagePart) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""

    def register(name: str) -> Block:
        return _block_parameters(tape, name, c)

    return decoder(tape, c, part, register, lambda block, x: _block(tape, c, block, x))


def _block(tape: Tape, c: TransformerConfig, block: Block, x: Tensor) -> Tensor:
    p, t = c.training.dropout, c.tensor
    project = conv1d if c.family == "gpt2" else dense
    y = enter(tape, norm(tape, x, block["first_norm"]), t)
    parts = [project(tape, y, block[part]) for part in ("qkv", *"qkv") if part in block]
    if len(parts) == 1:
        parts = split(tape, parts[0], (c.hidden // t,) * 3, 2, "aten::split")
    q, k, v = (split_heads(tape, part, c.heads // t) for part in parts)
    context = causal_attention(tape, c, q, k, v, _mask(tape, c))
    x = residual(tape, x, leave(tape, project(tape, context, block["attention_out"]), t), p)
    y = enter(tape, norm(tape, x, block["second_norm"]), t)
    hidden = ACTIVATION[c.family](tape, project(tape, y, block["fc"]))
    return residual(tape, x, leave(tape, project(tape, hidden, block["fc_out"]), t), p)


def _mask(tape: Tape, c: TransformerConfig) -> Callable[[Tensor], Tensor]:
    """How later tokens are hidden from scores: GPT-2 fills them in, the others add a mask."""
    size = (1, 1, c.sequence, c.sequence)
    if c.family == "gpt2":
        mask = buffer(size, "bool")
        return lambda scores: masked_fill(tape, scores, mask, constant(tape, ()))
    added = constant(tape, size)
    return lambda scores: add(tape, scores, added)
