"""XLNet: two-term relative attention over sequence-first tensors, without segments or memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepsight.program.aten.movement import fill_kernel
from stepsight.program.job import Kernel
from stepsight.workload.llm.eager.blocks import (
    Pair,
    buffer,
    constant,
    dense,
    embedding,
    linear_pair,
    norm,
    norm_pair,
)
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.operators.einsum import einsum
from stepsight.workload.operators.matmuls import linear
from stepsight.workload.operators.norms import cross_entropy, softmax
from stepsight.workload.operators.pointwise import add, dropout, gelu, scalar
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import (
    contiguous,
    expand,
    given,
    narrow,
    permute,
    reshape,
    transpose,
    view,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Projections are hidden × heads × head_dim; ``r`` projects relative positions."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    r: Tensor
    r_r_bias: Tensor
    r_w_bias: Tensor
    attention_norm: Pair
    output_norm: Pair
    layer_1: Pair
    layer_2: Pair

    @classmethod
    def register(cls, tape: Tape, name: str, c: TransformerConfig) -> Layer:
        h, n, d = c.hidden, c.heads, c.head_dim
        q, k, v, o, r = (tape.parameter(f"{name}.{p}", h, n, d) for p in "qkvor")
        place, content = (tape.parameter(f"{name}.{p}", n, d) for p in ("r_r_bias", "r_w_bias"))
        return cls(
            q, k, v, o, r, place, content, norm_pair(tape, f"{name}.attention_norm", h),
            norm_pair(tape, f"{name}.output_norm", h), linear_pair(tape, f"{name}.layer_1", c.ffn, h),
            linear_pair(tape, f"{name}.layer_2", h, c.ffn),
        )  # fmt: skip


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    word = tape.parameter("word", c.vocab, c.hidden)
    layers = [Layer.register(tape, f"layer.{i}", c) for i in range(c.layers)]
    bias = tape.parameter("lm_loss.bias", c.vocab) if c.head == "lm" else None

    def forward() -> Tensor:
        p, batch = c.training.dropout, c.batch_per_rank
        with tape.scope("embeddings"):
            ids = contiguous(tape, transpose(tape, buffer((batch, c.sequence), "int64"), 0, 1))
            x = dropout(tape, embedding(tape, word, ids), p)
            positions = expand(
                tape, constant(tape, (2 * c.sequence, 1, c.hidden)), 2 * c.sequence, batch, c.hidden
            )
            positions = dropout(tape, positions, p)
        for i, layer in enumerate(layers):
            with tape.scope(f"layer {i}"):
                x = _layer(tape, c, layer, x, positions)
        with tape.scope("head"):
            x = contiguous(tape, permute(tape, dropout(tape, x, p), 1, 0, 2))
            if bias is None:
                return x
            logits = linear(tape, x, word, bias)
            if c.training.loss == "none":
                return logits
            flat = view(tape, logits, -1, c.vocab)
            return cross_entropy(tape, flat, view(tape, buffer((batch, c.sequence), "int64"), -1))

    return forward


def _layer(tape: Tape, c: TransformerConfig, layer: Layer, x: Tensor, positions: Tensor) -> Tensor:
    p = c.training.dropout
    q, k, v = (einsum(tape, "ibh,hnd->ibnd", x, w) for w in (layer.q, layer.k, layer.v))
    r = einsum(tape, "ibh,hnd->ibnd", positions, layer.r)
    content = einsum(tape, "ibnd,jbnd->bnij", add(tape, q, layer.r_w_bias), k)
    place = relative_shift(tape, einsum(tape, "ibnd,jbnd->bnij", add(tape, q, layer.r_r_bias), r), c.sequence)
    scores = scalar(tape, "mul", scalar(tape, "add", add(tape, content, place)))
    context = einsum(tape, "bnij,jbnd->ibnd", dropout(tape, softmax(tape, scores), p), v)
    update = dropout(tape, einsum(tape, "ibnd,hnd->ibh", context, layer.o), p)
    x = norm(tape, add(tape, update, x), layer.attention_norm)
    inner = dropout(tape, gelu(tape, dense(tape, x, layer.layer_1)), p)
    update = dropout(tape, dense(tape, inner, layer.layer_2), p)
    return norm(tape, add(tape, update, x), layer.output_norm)


def relative_shift(tape: Tape, x: Tensor, length: int) -> Tensor:
    """Turns scores by relative position into scores by absolute position."""
    batch, heads, rows, cols = x.shape
    x = reshape(tape, x, batch, heads, cols, rows)
    x = narrow(tape, x, 2, cols - 1)
    x = reshape(tape, x, batch, heads, rows, cols - 1)
    return _index_select(tape, x, length)


def _index_select(tape: Tape, x: Tensor, length: int) -> Tensor:
    """The first ``length`` columns, picked by an index as XLNet does."""
    with tape.op("aten::index_select", (x,)):
        index = buffer((length,), "int64")
        out = Tensor.new((*x.shape[:-1], length), x.dtype)
        pick = Kernel.of("elementwise", x.dtype, operator="index_select", elements=out.elements,
                         read_bytes=out.bytes + index.bytes, write_bytes=out.bytes)  # fmt: skip
        tape.call("aten::index_select", (x, index), pick)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            whole = Tensor.new(x.shape, x.dtype)
            tape.call("aten::new_zeros", (given(g[0]),), fill_kernel(whole))
            put = Kernel.of("elementwise", x.dtype, operator="index_add", elements=out.elements,
                            read_bytes=2 * out.bytes + index.bytes, write_bytes=out.bytes)  # fmt: skip
            tape.call("aten::index_add_", (whole, index, given(g[0])), put)
            return (whole,)

        tape.record("IndexSelectBackward0", (x,), (out,), rule)
    return out
