"""BERT with a masked-language-model head: post-norm encoder, eager or fused attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepsight.workload.llm.eager.blocks import (
    Pair,
    attend,
    buffer,
    constant,
    dense,
    embedding,
    flash_attention,
    kept_or_run_again,
    norm,
    pair,
    pairs,
    residual,
    scaled_scores,
    split_heads,
)
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.operators.matmuls import linear
from stepsight.workload.operators.norms import cross_entropy
from stepsight.workload.operators.pointwise import add, dropout, gelu
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, permute, reshape, transpose, view

Layer = dict[str, Pair]


def _layer_parameters(tape: Tape, name: str, c: TransformerConfig) -> Layer:
    h, f = c.hidden, c.ffn
    return pairs(
        tape, name, query=(h, h), key=(h, h), value=(h, h), attention_out=(h, h), attention_norm=(h,),
        intermediate=(f, h), output=(h, f), output_norm=(h,),
    )  # fmt: skip


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    word = tape.parameter("word", c.vocab, c.hidden)
    position = tape.parameter("position", c.sequence, c.hidden)
    kind = tape.parameter("token_type", 2, c.hidden)
    first_norm = pair(tape, "embedding_norm", c.hidden)
    layers = [_layer_parameters(tape, f"layer.{i}", c) for i in range(c.layers)]
    if c.head == "lm":  # whose decoder weight is the word embedding
        bias = tape.parameter("decoder.bias", c.vocab)
        head = pairs(tape, "head", transform=(c.hidden, c.hidden), norm=(c.hidden,))

    def forward() -> Tensor:
        p = c.training.dropout
        ids = buffer((c.batch_per_rank, c.sequence), "int64")
        with tape.scope("embeddings"):
            x = add(tape, embedding(tape, word, ids), embedding(tape, kind, ids))
            x = add(tape, x, embedding(tape, position, buffer((1, c.sequence), "int64")))
            x = dropout(tape, norm(tape, x, first_norm), p)
        mask = constant(tape, (c.batch_per_rank, 1, 1, c.sequence))
        for i, layer in enumerate(layers):
            with tape.scope(f"layer {i}"):
                x = kept_or_run_again(tape, c, partial(_layer, tape, c, layer, mask), x)
        if c.head != "lm":
            return x
        with tape.scope("head"):
            x = norm(tape, gelu(tape, dense(tape, x, head["transform"])), head["norm"])
            logits = linear(tape, x, word, bias)
            if c.training.loss == "none":
                return logits
            flat = view(tape, logits, -1, c.vocab)
            target = view(tape, buffer((c.batch_per_rank, c.sequence), "int64"), -1)
            return cross_entropy(tape, flat, target)

    return forward


def _layer(tape: Tape, c: TransformerConfig, layer: Layer, mask: Tensor, x: Tensor) -> Tensor:
    p = c.training.dropout
    q = split_heads(tape, dense(tape, x, layer["query"]), c.heads)
    k = split_heads(tape, dense(tape, x, layer["key"]), c.heads)
    v = split_heads(tape, dense(tape, x, layer["value"]), c.heads)
    if c.training.attention == "flash":
        context = reshape(tape, transpose(tape, flash_attention(tape, q, k, v, causal=False), 1, 2), *x.shape)
    else:
        context = attend(tape, add(tape, scaled_scores(tape, q, k), mask), v, p)
        context = view(tape, contiguous(tape, permute(tape, context, 0, 2, 1, 3)), *x.shape)
    x = norm(
        tape, residual(tape, x, dense(tape, context, layer["attention_out"]), p), layer["attention_norm"]
    )
    update = dense(tape, gelu(tape, dense(tape, x, layer["intermediate"])), layer["output"])
    return norm(tape, residual(tape, x, update, p), layer["output_norm"])
