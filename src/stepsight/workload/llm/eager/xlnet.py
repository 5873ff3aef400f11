"""XLNet: two-term relative attention over sequence-first tensors, without segments or memory."""

from __future__ import annotations

from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.eager.families import Forward, Weights, dense, loss, normed, register
from stepsight.workload.operators.lookups import embedding, index_select
from stepsight.workload.operators.matmuls import einsum, linear
from stepsight.workload.operators.norms import softmax
from stepsight.workload.operators.pointwise import add, dropout, gelu, scalar
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, expand, narrow, permute, reshape, transpose


def model(tape: Tape, c: LanguageConfig) -> Forward:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    word = tape.parameter("word", c.model.vocab, c.model.hidden)
    layers = [_weights(tape, c, f"layer.{i}.") for i in range(c.model.layers)]
    bias = tape.parameter("lm_loss.bias", c.model.vocab) if c.model.head == "lm" else None

    def forward() -> Tensor:
        p, batch = c.training.dropout, c.batch_per_rank
        with tape.scope("embeddings"):
            ids = transpose(tape, tape.buffer("ids", (batch, c.sequence), "int64"), 0, 1)
            x = dropout(tape, embedding(tape, word, contiguous(tape, ids)), p)
            sizes = (2 * c.sequence, 1, c.model.hidden)
            positions = expand(tape, tape.buffer("relative", sizes), 2 * c.sequence, batch, c.model.hidden)
            positions = dropout(tape, positions, p)
        for i, layer in enumerate(layers):
            with tape.scope(f"layer {i}"):
                x = _layer(tape, c, layer, x, positions)
        with tape.scope("head"):
            x = contiguous(tape, permute(tape, dropout(tape, x, p), 1, 0, 2))
            return x if bias is None else loss(tape, c, linear(tape, x, word, bias), next_token=False)

    return forward


def _weights(tape: Tape, c: LanguageConfig, name: str) -> Weights:
    """Projections are hidden × heads × head_dim; ``r`` projects relative positions."""
    h, n, d = c.model.hidden, c.model.heads, c.model.head_dim
    made = {part: tape.parameter(name + part, h, n, d) for part in "qkvor"}
    made |= {part: tape.parameter(name + part, n, d) for part in ("r_r_bias", "r_w_bias")}
    return made | register(tape, name, norm_1=(h,), norm_2=(h,), up=(c.model.ffn, h), down=(h, c.model.ffn))


def _layer(tape: Tape, c: LanguageConfig, w: Weights, x: Tensor, positions: Tensor) -> Tensor:
    p = c.training.dropout
    q, k, v = (einsum(tape, "ibh,hnd->ibnd", x, w[part]) for part in "qkv")
    r = einsum(tape, "ibh,hnd->ibnd", positions, w["r"])
    content = einsum(tape, "ibnd,jbnd->bnij", add(tape, q, w["r_w_bias"]), k)
    place = einsum(tape, "ibnd,jbnd->bnij", add(tape, q, w["r_r_bias"]), r)
    scores = add(tape, content, _relative_shift(tape, place, c.sequence))
    scores = scalar(tape, "mul", scalar(tape, "add", scores, 0), c.model.head_dim**-0.5)
    context = einsum(tape, "bnij,jbnd->ibnd", dropout(tape, softmax(tape, scores), p), v)
    update = dropout(tape, einsum(tape, "ibnd,hnd->ibh", context, w["o"]), p)
    x = normed(tape, add(tape, update, x), w, "norm_1")
    inner = dropout(tape, gelu(tape, dense(tape, x, w, "up")), p)
    update = dropout(tape, dense(tape, inner, w, "down"), p)
    return normed(tape, add(tape, update, x), w, "norm_2")


def _relative_shift(tape: Tape, x: Tensor, length: int) -> Tensor:
    """Turns scores by relative position into scores by absolute position."""
    batch, heads, rows, cols = x.shape
    x = reshape(tape, x, batch, heads, cols, rows)
    x = narrow(tape, x, 2, cols - 1, start=1)
    x = reshape(tape, x, batch, heads, rows, cols - 1)
    return index_select(tape, x, tape.buffer("index", (length,), "int64"))
