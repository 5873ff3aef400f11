"""What lies before the first layer and after the last: embeddings, final norm, head and loss."""

from __future__ import annotations

from functools import lru_cache

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.program.variants import Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.layer import LayerWork, accumulate, as_one_layer_sees, layer_work
from stepsight.workload.llm.operators import ForwardBackward
from stepsight.workload.llm.work import Message, Pass

FROZEN = (Role.WGRAD, Role.ACCUMULATE)
"""Roles of kernels that frozen embeddings and heads do not need, nor the sums of rows' gradients."""


def embedding_work(c: LanguageConfig) -> LayerWork:
    """Token (and learned position) embeddings, or an image model's patches."""
    return _embedding_work(as_one_layer_sees(c))


@lru_cache(maxsize=128)
def _embedding_work(c: LanguageConfig) -> LayerWork:
    m, dtype, e = c.model, c.training.dtype, dtype_bytes(c.training.dtype)
    n, share = float(c.tokens), c.padded_vocab / c.layout.tensor
    if m.patches:
        both = ops.linear(dtype, dtype, n, m.hidden, m.patches, bias=True)
        parameters = float(m.patches * m.hidden)
        return LayerWork(
            Pass.of(both.forward, (), e * n * m.patches), Pass.of(both.backward), parameters, 0.0
        )
    pick = Kernel.of("gather", dtype, rows=n, cols=m.hidden, table_rows=share)
    put = [
        Kernel.of("sort", "int64", elements=n),
        Kernel.of("scatter", dtype, rows=n, cols=m.hidden, table_rows=share),
    ]
    both = ForwardBackward([pick], put)
    parameters = share * m.hidden
    if m.positions == "learned":
        both += ops.residual(dtype, n * m.hidden, 0.0, fused=True)
        parameters += c.sequence * m.hidden
    if c.training.dropout:
        both += ForwardBackward(
            [Kernel.of("dropout", dtype, elements=n * m.hidden)],
            [ops.stream("mul", dtype, n * m.hidden, e + 1, e)],
            n * m.hidden,
        )
    both.backward += accumulate(c, parameters)
    both.backward = [k for k in both.backward if not (c.training.frozen and _of_weights(k))]
    messages = _summed(c, n * m.hidden)
    return LayerWork(
        Pass.of(both.forward, messages, both.kept_bytes), Pass.of(both.backward), parameters, 0.0
    )


def head_work(c: LanguageConfig) -> LayerWork:
    """Final norm, logits and loss. A tied head holds its own copy where the first stage is another rank."""
    return _head_work(as_one_layer_sees(c))


@lru_cache(maxsize=128)
def _head_work(c: LanguageConfig) -> LayerWork:
    m, t, f, dtype = c.model, c.layout.tensor, c.framework, c.training.dtype
    e, n = dtype_bytes(dtype), float(c.tokens)
    rows = n / (t if c.layout.sequence_parallel else 1)
    both = ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm or c.training.compiled)
    both.kept_bytes += e * rows * m.hidden
    seen = float(c.micro_batch) if m.patches else n * c.training.loss_share
    share = c.padded_vocab / t
    both += ops.linear(c.training.wide_product, dtype, seen, share, m.hidden)
    messages: list[Message] = []
    backward: list[Message] = []
    if c.training.loss != "none":
        whole = f.gathers_logits and t > 1
        seen_vocab = c.padded_vocab if whole else share
        both += ops.loss(
            dtype,
            seen,
            seen_vocab,
            fused=f.fused_loss or c.training.compiled,
            split=(t > 1 or f.sharded_loss) and not whole,
        )
        for _ in range(f.loss_metrics):
            both += ops.loss_metric(dtype, seen, seen_vocab, wide=not c.training.master_weights)
        if whole:
            messages = [Message("tensor", "all_gather", e * seen * seen_vocab, dtype)]
        elif t > 1:
            messages = [Message("tensor", "all_reduce", 4 * n, "fp32")] * 3
    parameters = share * m.hidden
    both.backward += accumulate(c, parameters)
    both.backward = [k for k in both.backward if not (c.training.frozen and _of_weights(k))]
    if t > 1:
        bytes_ = e * n * m.hidden
        if c.layout.sequence_parallel:
            messages = [*messages, Message("tensor", "all_gather", bytes_, dtype)]
            backward = [
                Message("tensor", "all_gather", bytes_, dtype),
                Message("tensor", "reduce_scatter", bytes_, dtype),
            ]
        else:
            backward = [Message("tensor", "all_reduce", bytes_, dtype)]
    own = parameters if not (m.tied and c.layout.pipeline == 1) else 0.0
    return LayerWork(
        Pass.of(both.forward, messages, both.kept_bytes),
        Pass.of(both.backward, backward),
        own + m.hidden,
        0.0,
    )


def mtp_work(c: LanguageConfig, recompute: str) -> LayerWork:
    """A layer that predicts one more token: the next token's embedding and the hidden state, each normed, are
    projected together; then an ordinary layer. The head that follows is the model's own."""
    m, dtype, n = c.model, c.training.dtype, float(c.tokens)
    layer, table = layer_work(c, experts=m.experts is not None, recompute=recompute), embedding_work(c)
    both = ForwardBackward()
    for _ in range(2):
        both += ops.norm(m.norm, dtype, n, m.hidden, fused=c.training.fused_norm or c.training.compiled)
    both += ops.linear(dtype, dtype, n, m.hidden / c.layout.tensor, 2 * m.hidden)
    both.kept_bytes += 2 * dtype_bytes(dtype) * n * m.hidden
    return LayerWork(
        table.forward + Pass.of(both.forward, (), both.kept_bytes) + layer.forward,
        layer.backward + Pass.of(both.backward) + table.backward,
        layer.parameters + m.mtp_projection_parameters / c.layout.tensor,
        layer.expert_parameters,
    )


def _summed(c: LanguageConfig, elements: float) -> list[Message]:
    """Every tensor rank looks up the rows it holds; the results are summed."""
    if c.layout.tensor == 1:
        return []
    kind = "reduce_scatter" if c.layout.sequence_parallel else "all_reduce"
    return [Message("tensor", kind, dtype_bytes(c.training.dtype) * elements, c.training.dtype)]


def _of_weights(kernel: Kernel) -> bool:
    return kernel.kind.role in FROZEN or kernel.family in ("sort", "scatter")
