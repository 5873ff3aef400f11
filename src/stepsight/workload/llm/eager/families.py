"""The transformer families in plain PyTorch, operator by operator, as Hugging Face's modules have them.

BERT, the GPTs and Llama are one description; `Family` says what differs. The same functions record a step
(`Tape`) and train it (`stepsight.run.transformers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.operators.lookups import embedding, masked_fill
from stepsight.workload.operators.matmuls import addmm, flash_attention, linear, matmul
from stepsight.workload.operators.norms import cross_entropy, layer_norm, rms_norm, softmax
from stepsight.workload.operators.pointwise import (
    add,
    dropout,
    gelu,
    mul,
    negate,
    relu,
    scalar,
    silu,
    tanh,
)
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import (
    cat,
    contiguous,
    expand,
    narrow,
    permute,
    reshape,
    split,
    transpose,
    unsqueeze,
    view,
)

Weights = Mapping[str, Tensor]
Forward = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a family apart.

    ``encoder`` (BERT): norms after each sum, attention both ways, a transform in front of the logits.
    ``llama``: RMS norms, no biases, rotary positions, a gated MLP, a head of its own. ``merged``: one
    projection for queries, keys and values. ``conv1d`` (GPT-2): weights are in × out, and the future is
    filled in.
    """

    activation: str = "gelu"
    encoder: bool = False
    llama: bool = False
    merged: bool = False
    conv1d: bool = False


FAMILIES = {
    "bert": Family(encoder=True),
    "gpt2": Family("gelu_new", merged=True, conv1d=True),
    "gpt": Family(merged=True),
    "opt": Family("relu"),
    "llama": Family("silu", llama=True),
}


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), each operator on its own as GPT-2 writes it."""
    half = scalar(tape, "mul", x, 0.5)
    inner = scalar(tape, "mul", scalar(tape, "pow", x, 3.0), 0.044715)
    inner = scalar(tape, "mul", add(tape, x, inner), math.sqrt(2 / math.pi))
    return mul(tape, half, scalar(tape, "add", tanh(tape, inner), 1.0))


_ACTIVATIONS = {"gelu": gelu, "gelu_new": gelu_new, "relu": relu, "silu": silu}


def register(
    tape: Tape, name: str, *, bias: bool = True, transposed: bool = False, **shapes: tuple[int, ...]
) -> dict[str, Tensor]:
    """Weights of linear layers (outputs × inputs unless ``transposed``) and norms, and their biases."""
    made = {}
    for part, shape in shapes.items():
        made[part] = tape.parameter(f"{name}{part}.weight", *(shape[::-1] if transposed else shape))
        if bias:
            made[f"{part} bias"] = tape.parameter(f"{name}{part}.bias", shape[0])
    return made


def dense(tape: Tape, x: Tensor, w: Weights, part: str) -> Tensor:
    return linear(tape, x, w[part], w.get(f"{part} bias"))


def normed(tape: Tape, x: Tensor, w: Weights, part: str) -> Tensor:
    if f"{part} bias" not in w:
        return rms_norm(tape, x, w[part])
    return layer_norm(tape, x, w[part], w[f"{part} bias"])


def decoder(tape: Tape, c: LanguageConfig) -> Forward:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    f, h, p = FAMILIES[c.family], c.model.hidden, c.training.dropout
    tokens = tape.parameter("tokens", c.model.vocab, h)
    positions = None if f.llama else tape.parameter("positions", c.sequence, h)
    types = tape.parameter("types", 2, h) if f.encoder else None
    ends = register(tape, "", bias=not f.llama, norm=(h,))
    blocks = [_block_weights(tape, c, f, f"block.{i}.") for i in range(c.model.layers)]
    if c.model.head == "lm" and f.encoder:
        ends |= register(tape, "head.", transform=(h, h), head_norm=(h,))
        ends["bias"] = tape.parameter("head.bias", c.model.vocab)
    if c.model.head == "lm" and f.llama:
        ends["head"] = tape.parameter("head", c.model.vocab, h)

    def forward() -> Tensor:
        with tape.scope("embeddings"):
            ids = tape.buffer("ids", (c.batch_per_rank, c.sequence), "int64")
            x = embedding(tape, tokens, ids)
            if types is not None:
                kinds = tape.buffer("types", (c.batch_per_rank, c.sequence), "int64")
                x = add(tape, x, embedding(tape, types, kinds))
            if positions is not None:
                x = add(tape, x, embedding(tape, positions, tape.buffer("places", (1, c.sequence), "int64")))
                x = dropout(tape, normed(tape, x, ends, "norm") if f.encoder else x, p)
        for i, block in enumerate(blocks):
            with tape.scope(f"block {i}"):
                x = kept_or_run_again(tape, c, partial(_block, tape, c, f, block), x)
        with tape.scope("head"):
            if not f.encoder:
                x = normed(tape, x, ends, "norm")
            if c.model.head == "none":
                return x
            if f.encoder:
                x = normed(tape, gelu(tape, dense(tape, x, ends, "transform")), ends, "head_norm")
            logits = linear(tape, x, ends.get("head", tokens), ends.get("bias"))
            return loss(tape, c, logits, next_token=not f.encoder)

    return forward


def kept_or_run_again(tape: Tape, c: LanguageConfig, block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """One block, whose tensors the backward pass finds kept or makes again (``recompute``)."""
    return tape.checkpoint(block, x) if c.training.recompute == "full" else block(x)


def loss(tape: Tape, c: LanguageConfig, logits: Tensor, *, next_token: bool) -> Tensor:
    """Cross entropy of every token, or of the next one; the logits where the description has no loss."""
    if c.training.loss == "none":
        return logits
    target = tape.buffer("target", (c.batch_per_rank, c.sequence), "int64")
    if not next_token:
        return cross_entropy(tape, view(tape, logits, -1, c.model.vocab), view(tape, target, -1))
    shifted = contiguous(tape, narrow(tape, logits, 1, c.sequence - 1))
    flat = view(tape, shifted, -1, c.model.vocab)
    target = narrow(tape, target, 1, c.sequence - 1, start=1)
    return cross_entropy(tape, flat, reshape(tape, target, -1))


def _block_weights(tape: Tape, c: LanguageConfig, f: Family, name: str) -> Weights:
    h, n, kv = c.model.hidden, c.model.ffn, c.model.kv_heads * c.model.head_dim
    qkv = {"qkv": (3 * h, h)} if f.merged else {"q": (h, h), "k": (kv, h), "v": (kv, h)}
    gate = {"gate": (n, h)} if f.llama else {}
    return register(
        tape, name, bias=not f.llama, transposed=f.conv1d,
        **qkv, out=(h, h), norm_1=(h,), **gate, up=(n, h), down=(h, n), norm_2=(h,),
    )  # fmt: skip


def _block(tape: Tape, c: LanguageConfig, f: Family, w: Weights, x: Tensor) -> Tensor:
    p = c.training.dropout
    context = _attention(tape, c, f, w, x if f.encoder else normed(tape, x, w, "norm_1"))
    x = add(tape, dropout(tape, _project(tape, f, context, w, "out"), p), x)
    if f.encoder:
        x = normed(tape, x, w, "norm_1")
    y = x if f.encoder else normed(tape, x, w, "norm_2")
    inner = _ACTIVATIONS[f.activation](tape, _project(tape, f, y, w, "gate" if f.llama else "up"))
    if f.llama:
        inner = mul(tape, inner, _project(tape, f, y, w, "up"))
    x = add(tape, dropout(tape, _project(tape, f, inner, w, "down"), p), x)
    return normed(tape, x, w, "norm_2") if f.encoder else x


def _project(tape: Tape, f: Family, x: Tensor, w: Weights, part: str) -> Tensor:
    if not f.conv1d:
        return dense(tape, x, w, part)
    flat = addmm(tape, w[f"{part} bias"], view(tape, x, -1, x.shape[-1]), w[part])
    return view(tape, flat, *x.shape[:-1], w[part].shape[1])


def _attention(tape: Tape, c: LanguageConfig, f: Family, w: Weights, x: Tensor) -> Tensor:
    """By the fused kernel, or operator by operator."""
    if f.merged:
        parts = split(tape, _project(tape, f, x, w, "qkv"), (c.model.hidden,) * 3, 2, "aten::split")
        q, k, v = (_by_head(tape, part, c.model.heads) for part in parts)
    else:
        heads = {"q": c.model.heads, "k": c.model.kv_heads, "v": c.model.kv_heads}
        q, k, v = (_by_head(tape, _project(tape, f, x, w, part), n) for part, n in heads.items())
    if f.llama:
        angles = (1, 1, c.sequence, c.model.head_dim)
        cos, sin = tape.buffer("cos", angles), tape.buffer("sin", angles)
        q, k = _rotated(tape, q, cos, sin), _rotated(tape, k, cos, sin)
        k, v = _repeated(tape, k, c.model.heads), _repeated(tape, v, c.model.heads)
    if c.training.attention != "eager":
        context = transpose(tape, flash_attention(tape, q, k, v, causal=not f.encoder), 1, 2)
        return reshape(tape, context, *x.shape)
    scores = matmul(tape, q, transpose(tape, k, -1, -2))
    if f.llama:
        scores = scalar(tape, "mul", scores, c.model.head_dim**-0.5)
    else:
        scores = scalar(tape, "div", scores, c.model.head_dim**0.5)
    probabilities = softmax(tape, _masked(tape, c, f, scores))
    context = matmul(tape, dropout(tape, probabilities, c.training.dropout), v)
    return view(tape, contiguous(tape, permute(tape, context, 0, 2, 1, 3)), *x.shape)


def _masked(tape: Tape, c: LanguageConfig, f: Family, scores: Tensor) -> Tensor:
    """Padding or later tokens hidden: GPT-2 fills them in, the others add a mask."""
    if f.conv1d:
        past = tape.buffer("past", (1, 1, c.sequence, c.sequence), "bool")
        return masked_fill(tape, scores, past, tape.buffer("lowest", ()))
    if f.encoder:
        return add(tape, scores, tape.buffer("padding", (c.batch_per_rank, 1, 1, c.sequence)))
    return add(tape, scores, tape.buffer("future", (1, 1, c.sequence, c.sequence)))


def _by_head(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """batch × sequence × hidden as batch × heads × sequence × head_dim (a view)."""
    batch, sequence, hidden = x.shape
    return transpose(tape, view(tape, x, batch, sequence, heads, hidden // heads), 1, 2)


def _rotated(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + rotate_half(x) · sin."""
    half = x.shape[-1] // 2
    straight = mul(tape, x, cos)
    first, second = narrow(tape, x, -1, half), narrow(tape, x, -1, half, start=half)
    turned = cat(tape, (negate(tape, second), first), -1)
    return add(tape, straight, mul(tape, turned, sin))


def _repeated(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """Each key or value head once for every query head of its group."""
    batch, kv_heads, sequence, dim = x.shape
    if kv_heads == heads:
        return x
    wide = expand(tape, unsqueeze(tape, x, 2), batch, kv_heads, heads // kv_heads, sequence, dim)
    return reshape(tape, wide, batch, heads, sequence, dim)
