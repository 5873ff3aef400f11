"""XLNet: two-term relative attention over sequence-first tensors, without segments or memory."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.program.aten.movement import fill_kernel
from stepsight.program.job import Kernel
from stepsight.workload.llm.eager.blocks import Pair, buffer, constant, dense, embedding, norm, pairs
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.operators.matmuls import einsum, linear
from stepsight.workload.operators.norms import cross_entropy, softmax
from stepsight.workload.operators.pointwise import add, dropout, gelu, scalar
from stepsight.workload.operators.tape import Grads, Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, expand, narrow, permute, reshape, transpose, view

Layer = tuple[dict[str, Tensor], dict[str, Pair]]


def _layer_parameters(tape: Tape, name: str, c: TransformerConfig) -> Layer:
    """Projections are hidden × heads × head_dim; ``r`` projects relative positions."""
    h, n, d = c.hidden, c.heads, c.head_dim
    projections = {part: tape.parameter(f"{name}.{part}", h, n, d) for part in "qkvor"}
    projections |= {part: tape.parameter(f"{name}.{part}", n, d) for part in ("r_r_bias", "r_w_bias")}
    sizes = {"attention_norm": (h,), "output_norm": (h,), "layer_1": (c.ffn, h), "layer_2": (h, c.ffn)}
    return projections, pairs(tape, name, **sizes)


def model(tape: Tape, c: TransformerConfig) -> Callable[[], Tensor]:
    """Registers the parameters; the result runs the forward pass to the loss (or the last output)."""
    word = tape.parameter("word", c.vocab, c.hidden)
    layers = [_layer_parameters(tape, f"layer.{i}", c) for i in range(c.layers)]
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
    p, (weight, module) = c.training.dropout, layer
    q, k, v = (einsum(tape, "ibh,hnd->ibnd", x, weight[part]) for part in "qkv")
    r = einsum(tape, "ibh,hnd->ibnd", positions, weight["r"])
    content = einsum(tape, "ibnd,jbnd->bnij", add(tape, q, weight["r_w_bias"]), k)
    place = relative_shift(
        tape, einsum(tape, "ibnd,jbnd->bnij", add(tape, q, weight["r_r_bias"]), r), c.sequence
    )
    scores = scalar(tape, "mul", scalar(tape, "add", add(tape, content, place)))
    context = einsum(tape, "bnij,jbnd->ibnd", dropout(tape, softmax(tape, scores), p), v)
    update = dropout(tape, einsum(tape, "ibnd,hnd->ibh", context, weight["o"]), p)
    x = norm(tape, add(tape, update, x), module["attention_norm"])
    inner = dropout(tape, gelu(tape, dense(tape, x, module["layer_1"])), p)
    update = dropout(tape, dense(tape, inner, module["layer_2"]), p)
    return norm(tape, add(tape, update, x), module["output_norm"])


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

        def rule(grad: Tensor) -> Grads:
            whole = Tensor.new(x.shape, x.dtype)
            tape.call("aten::new_zeros", (grad,), fill_kernel(whole))
            put = Kernel.of("elementwise", x.dtype, operator="index_add", elements=out.elements,
                            read_bytes=2 * out.bytes + index.bytes, write_bytes=out.bytes)  # fmt: skip
            tape.call("aten::index_add_", (whole, index, grad), put)
            return (whole,)

        tape.record("IndexSelectBackward0", (x,), (out,), rule)
    return out
