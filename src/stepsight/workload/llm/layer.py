"""One layer's share of one rank: its kernels and messages, forward, backward and run again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.model import Experts
from stepsight.workload.llm.operators import Both
from stepsight.workload.llm.work import Message, Pass

MOST_GATHERED = 4
"""Tensor ranks up to which gathered inputs are kept in a pipeline, too (llm_h100_sweep.csv: at 16 and 32
ranks they are not, at 8 in about half of the rows)."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What a layer does with one micro-batch, and the parameters it holds (without and of experts)."""

    forward: Pass
    backward: Pass
    parameters: float
    expert_parameters: float


def layer_work(
    c: LanguageConfig, *, experts: bool, cross: bool = False, recompute: str | None = None
) -> LayerWork:
    """A layer with or without experts; ``cross``: it also attends to an encoder's output."""
    mode = c.training.recompute if recompute is None else recompute
    attention = _attention(c)
    mlp = _mixture(c, c.model.experts) if experts and c.model.experts else _mlp(c, c.model.ffn)
    parts = [attention, *([_attention(c)] if cross else []), mlp]
    forward, backward = Pass(), Pass()
    again: Counter[Kernel] = Counter()
    for part in parts:
        forward += Pass.of(part.both.forward, part.forward, part.both.kept_bytes)
        backward += Pass.of(part.both.backward, part.backward)
        again.update(part.again)
    forward, backward = _run_again(c, mode, forward, backward, again)
    backward += Pass.of(_accumulation(c, experts=experts, cross=cross))
    backward = without_weights(backward) if c.training.adapters else backward
    dense, expert = layer_parameters(c, experts=experts, cross=cross)
    return LayerWork(forward, backward, dense, expert)


def layer_parameters(c: LanguageConfig, *, experts: bool, cross: bool = False) -> tuple[float, float]:
    """Parameters of one rank's share of a layer: without experts, and its experts."""
    m, s = c.model, c.layout
    attention = m.attention_parameters * (2 if cross else 1)
    if not experts or m.experts is None:
        return (attention + m.mlp_parameters) / s.tensor + m.norm_parameters, 0.0
    e = m.experts
    shared = m.expert_parameters * e.shared_ffn / e.ffn
    dense = (attention + shared) / s.tensor + m.norm_parameters + m.hidden * e.count
    split = s.expert if s.expert > 1 else s.tensor
    return dense, m.expert_parameters * e.count / split


def _run_again(
    c: LanguageConfig, mode: str, forward: Pass, backward: Pass, selected: Counter[Kernel]
) -> tuple[Pass, Pass]:
    """Recomputation: what the forward pass then keeps, and what the backward pass does once more."""
    if mode == "full":
        kept = dtype_bytes(c.training.dtype) * c.tokens * c.model.hidden / _shared(c)
        return (
            Pass(forward.kernels, forward.messages, kept),
            Pass(forward.kernels + backward.kernels, forward.messages + backward.messages),
        )
    if mode == "selective":
        kept = sum(_kept_by_selection(c).values()) if _keeps_products(c) else forward.kept_bytes - _inside(c)
        return Pass(forward.kernels, forward.messages, kept), Pass(
            backward.kernels + selected, backward.messages
        )
    return forward, backward


def _keeps_products(c: LanguageConfig) -> bool:
    """torch's selective checkpointing keeps the outputs of products and attention; Megatron's drops only
    what lies inside attention."""
    return not c.framework.name.startswith("megatron")


def without_weights(work: Pass) -> Pass:
    """A backward pass through frozen weights."""
    kernels = Counter(
        {k: n for k, n in work.kernels.items() if k.name not in ("wgrad", "accumulate", "bias")}
    )
    messages: Counter[Message] = Counter()
    for message, n in work.messages.items():
        messages[replace(message, beside=tuple(k for k in message.beside if k in kernels))] += n
    return Pass(kernels, messages, work.kept_bytes)


def _kept_by_selection(c: LanguageConfig) -> dict[str, float]:
    """What torch's selective checkpointing keeps of a layer: its input, attention's output, every other
    product's output (torchtitan's default policy)."""
    m, e, t = c.model, dtype_bytes(c.training.dtype), c.layout.tensor
    n = c.tokens
    return {
        "input": e * n * m.hidden / _shared(c),
        "attention": e * n * m.heads * m.head_dim / t,
        "products": 0.5 * e * n * ((m.heads + 2 * m.kv_heads) * m.head_dim + 2 * m.ffn + 2 * m.hidden) / t,
    }


def _inside(c: LanguageConfig) -> float:
    """Bytes that lie inside plain attention (scores, probabilities, mask)."""
    if c.training.attention not in ("eager", "fused"):
        return 0.0
    return _core(c).kept_bytes


def _shared(c: LanguageConfig) -> int:
    """Ranks over which the regions between tensor-parallel blocks are split."""
    return c.layout.tensor if c.layout.sequence_parallel else 1


def _casts_weights(c: LanguageConfig) -> bool:
    """Weights are cast to fp8 once a step and kept for all micro-batches."""
    return c.layout.micro_batches == 1


def _kept_rows(c: LanguageConfig) -> float:
    """Tokens whose norm output a block keeps: its own share, or all of the group's."""
    s = c.layout
    gathered = c.framework.keeps_gathered and (s.pipeline == 1 or s.tensor <= MOST_GATHERED)
    return c.tokens if gathered else c.tokens / _shared(c)


@dataclass(slots=True)
class _Block:
    """One residual block with the messages of each pass; ``again``: what selective recomputation repeats."""

    both: Both
    forward: list[Message]
    backward: list[Message]
    again: list[Kernel]


def _attention(c: LanguageConfig) -> _Block:
    m, t, f = c.model, c.layout.tensor, c.framework
    dtype, product, e = c.training.dtype, c.training.product_dtype, dtype_bytes(c.training.dtype)
    n, rows = float(c.tokens), c.tokens / _shared(c)
    both = ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm or c.training.compiled)
    both.kept_bytes += e * _kept_rows(c) * m.hidden
    again = list(both.forward) if _keeps_products(c) else []
    wide = (m.heads + 2 * m.kv_heads) * m.head_dim / t
    if m.latent is None:
        qkv = ops.linear(
            product, dtype, n, wide, m.hidden, bias=m.bias, cast_input=False, cast_weight=_casts_weights(c)
        )
    else:
        qkv = _latent_projections(c, n)
    both += qkv
    both.kept_bytes += e * n * wide
    turned = n * (m.heads + m.kv_heads) * m.head_dim / t
    if m.positions == "rotary":
        turn = ops.rotary(dtype, turned, m.head_dim, fused=f.fused_rotary or c.training.compiled)
        both += turn
        again += turn.forward if _keeps_products(c) else []
    if m.qk_norm:
        both += ops.norm(m.norm, dtype, turned / m.head_dim, m.head_dim, fused=c.training.fused_norm)
    core = _core(c)
    both += core
    again += core.forward if not _keeps_products(c) else []
    v_dim = m.latent.v_dim if m.latent else m.head_dim
    both.kept_bytes += e * n * m.heads * v_dim / t
    both += ops.linear(product, dtype, n, m.hidden, m.heads * v_dim / t, cast_weight=_casts_weights(c))
    both += ops.residual(dtype, rows * m.hidden, c.training.dropout, fused=f.fused_mlp, bias=m.bias)
    first = [k for k in qkv.backward if k.name == "wgrad"], [k for k in qkv.backward if k.name == "dgrad"]
    forward, backward = _tensor_messages(c, n * m.hidden, *first)
    around = _context_messages(c, core)
    if m.norms_per_layer == 4:
        both += ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm)
    return _Block(both, [*forward, *around[0]], [*backward, *around[1]], again)


def _latent_projections(c: LanguageConfig, n: float) -> Both:
    """DeepSeek's low-rank projections; the ranks hold the down-projections whole."""
    m, t, a = c.model, c.layout.tensor, c.model.latent
    assert a is not None
    dtype, product = c.training.dtype, c.training.product_dtype
    q_dim = m.heads * (a.nope_dim + a.rope_dim) / t
    both = Both()
    if a.q_rank:
        both += ops.linear(product, dtype, n, a.q_rank, m.hidden)
        both += ops.norm("rms", dtype, n, a.q_rank, fused=c.training.fused_norm)
        both += ops.linear(product, dtype, n, q_dim, a.q_rank)
    else:
        both += ops.linear(product, dtype, n, q_dim, m.hidden)
    both += ops.linear(product, dtype, n, a.kv_rank + a.rope_dim, m.hidden)
    both += ops.norm("rms", dtype, n, a.kv_rank, fused=c.training.fused_norm)
    both += ops.linear(product, dtype, n, m.heads * (a.nope_dim + a.v_dim) / t, a.kv_rank)
    width = m.heads * (a.nope_dim + a.rope_dim) / t
    both += Both(
        [ops.stream("cat", dtype, 2 * n * width, 2, 2)], [ops.stream("cat", dtype, 2 * n * width, 2, 2)]
    )
    return both


def _core(c: LanguageConfig) -> Both:
    """Attention proper, for this rank's heads and its part of the sequence."""
    m, s, t = c.model, c.training, c.layout.tensor
    heads, kv_heads = m.heads // t, max(1, m.kv_heads // t)
    dim = (m.latent.nope_dim + m.latent.rope_dim + m.latent.v_dim) // 2 if m.latent else m.head_dim
    batch, length, parts = c.micro_batch, c.sequence, c.layout.context
    if m.window and m.window < length:
        full = 1 / m.window_every if m.window_every > 1 else 0.0
        seen = int(m.window + full * (length / 2 - m.window))
        return ops.flash(
            s.dtype, s.attention, batch, heads, kv_heads, length // parts, seen, dim, causal=False
        )
    if s.attention in ("eager", "fused"):
        return ops.plain_attention(
            s.dtype, batch, heads, length // parts, length, dim, s.dropout, fused=s.attention == "fused"
        )
    own = length // parts
    both = ops.flash(s.dtype, s.attention, batch, heads, kv_heads, own, own, dim, causal=m.causal)
    for _ in range(parts - 1):  # Each step sees half of another rank's keys (all of them where not causal).
        seen = own // 2 if m.causal else own
        both += ops.flash(s.dtype, s.attention, batch, heads, kv_heads, own, seen, dim, causal=False)
    return both


def _mlp(c: LanguageConfig, ffn: int) -> _Block:
    m, t, f = c.model, c.layout.tensor, c.framework
    dtype, product, e = c.training.dtype, c.training.product_dtype, dtype_bytes(c.training.dtype)
    n, rows = float(c.tokens), c.tokens / _shared(c)
    both = ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm or c.training.compiled)
    both.kept_bytes += e * _kept_rows(c) * m.hidden
    again = list(both.forward) if _keeps_products(c) else []
    into = ops.linear(
        product,
        dtype,
        n,
        (2 if m.gated else 1) * ffn / t,
        m.hidden,
        cast_input=False,
        cast_weight=_casts_weights(c),
    )
    both += into
    act = ops.activation(
        dtype, n, ffn / t, gated=m.gated, fused=f.fused_mlp or c.training.compiled, bias=m.bias
    )
    both += act
    again += act.forward if _keeps_products(c) else []
    out = ops.linear(product, dtype, n, m.hidden, ffn / t, cast_input=False, cast_weight=_casts_weights(c))
    both += out
    again += [into.forward[-1]] if _keeps_products(c) else []
    both += ops.residual(dtype, rows * m.hidden, c.training.dropout, fused=f.fused_mlp, bias=m.bias)
    wgrad, dgrad = [into.backward[-1]], [into.backward[-2]]
    forward, backward = _tensor_messages(c, n * m.hidden, wgrad, dgrad)
    if m.norms_per_layer == 4:
        both += ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm)
    return _Block(both, forward, backward, again)


def _mixture(c: LanguageConfig, x: Experts) -> _Block:
    """Router, exchange of tokens, the rank's own experts, exchange back; shared experts beside them."""
    m, s = c.model, c.layout
    dtype, product, e = c.training.dtype, c.training.product_dtype, dtype_bytes(c.training.dtype)
    spread_out = s.expert > 1
    rows = c.tokens / (s.tensor if spread_out and s.tensor > 1 else _shared(c))
    ffn = x.ffn if spread_out else x.ffn / s.tensor
    both = ops.norm(m.norm, dtype, rows, m.hidden, fused=c.training.fused_norm)
    both.kept_bytes += e * _kept_rows(c) * m.hidden
    both += ops.linear(dtype, dtype, rows, x.count, m.hidden)
    both += Both(
        [
            Kernel.of("softmax", "fp32", rows=rows, cols=x.count),
            Kernel.of("sort", "int64", elements=rows * x.active),
        ],
        [Kernel.of("softmax_backward", "fp32", rows=rows, cols=x.count)],
    )
    routed = rows * x.active
    move = ops.stream("permute", dtype, routed * m.hidden, e, e)
    both += Both([move], [move], e * routed * m.hidden)
    local = max(1, x.count // s.expert)
    each = routed * x.imbalance / local
    both += ops.linear(
        product,
        dtype,
        each,
        (2 if m.gated else 1) * ffn,
        m.hidden,
        batch=local,
        cast_weight=_casts_weights(c),
    )
    both += ops.activation(dtype, each * local, ffn, gated=m.gated, fused=True, bias=False)
    both += ops.linear(
        product, dtype, each, m.hidden, ffn, batch=local, cast_input=False, cast_weight=_casts_weights(c)
    )
    both += Both(
        [move, ops.stream("mul", dtype, routed * m.hidden, 2 * e, e)],
        [move, ops.stream("mul", dtype, routed * m.hidden, 2 * e, e)],
        e * routed * m.hidden,
    )
    forward: list[Message] = []
    backward: list[Message] = []
    if spread_out:
        exchange = Message("expert", "all_to_all", e * routed * m.hidden * x.imbalance, dtype)
        forward, backward = [exchange, exchange], [exchange, exchange]
    else:
        forward, backward = _tensor_messages(c, c.tokens * m.hidden, [], [])
    if x.shared_ffn:
        shared = _mlp(c, x.shared_ffn)
        shared.both.forward = [k for k in shared.both.forward if k.family != "layer_norm"]
        shared.both.backward = [k for k in shared.both.backward if k.family != "layer_norm_backward"]
        both += shared.both
        forward, backward = [*forward, *shared.forward], [*backward, *shared.backward]
    else:
        both += ops.residual(dtype, rows * m.hidden, 0.0, fused=True, bias=False)
    return _Block(both, forward, backward, [])


def _tensor_messages(
    c: LanguageConfig, elements: float, wgrad: list[Kernel], dgrad: list[Kernel]
) -> tuple[list[Message], list[Message]]:
    """A block's sums over the tensor group: one each way, or gather and scatter with sequence parallelism.

    Backward, the sum of the input's gradient runs beside the weight gradient's product, and with sequence
    parallelism the input is gathered again beside the input gradient's (Megatron and nanotron alike).
    ``async_tensor``: forward too, products are cut so that transfers run beside them.
    """
    if c.layout.tensor == 1:
        return [], []
    dtype = c.training.dtype
    bytes_ = dtype_bytes(dtype) * elements
    beside_w, beside_d = tuple(wgrad), tuple(dgrad)
    if not c.layout.sequence_parallel:
        return (
            [Message("tensor", "all_reduce", bytes_, dtype)],
            [Message("tensor", "all_reduce", bytes_, dtype, beside_w)],
        )
    gather, scatter = (Message("tensor", kind, bytes_, dtype) for kind in ("all_gather", "reduce_scatter"))
    backward = [
        gather,
        Message("tensor", "all_gather", bytes_, dtype, beside_d),
        Message("tensor", "reduce_scatter", bytes_, dtype, beside_w),
    ]
    if c.layout.async_tensor:
        forward = [Message("tensor", "all_gather", bytes_, dtype, beside_d), scatter]
        return forward, backward
    return [gather, scatter], backward


def _context_messages(c: LanguageConfig, core: Both) -> tuple[list[Message], list[Message]]:
    """Keys and values travel round the ring beside attention, or are gathered before it."""
    m, parts = c.model, c.layout.context
    if parts == 1:
        return [], []
    kv = max(1, m.kv_heads // c.layout.tensor) * m.head_dim
    bytes_ = 2.0 * dtype_bytes(c.training.dtype) * c.tokens * kv
    dtype = c.training.dtype
    if c.layout.context_kind == "all_gather":
        gather = Message("context", "all_gather", bytes_ * parts, dtype)
        return [gather], [gather, Message("context", "reduce_scatter", bytes_ * parts, dtype)]
    hop = Message("context", "send_recv", bytes_, dtype, tuple(core.forward[1:2]))
    back = Message("context", "send_recv", 2 * bytes_, dtype, tuple(core.backward[:1]))
    return [hop] * (parts - 1), [back] * (parts - 1)


def _accumulation(c: LanguageConfig, *, experts: bool, cross: bool) -> list[Kernel]:
    """Adding a micro-batch's weight gradients to the sum of those before it."""
    dense, expert = layer_parameters(c, experts=experts, cross=cross)
    return accumulate(c, dense + expert)


def accumulate(c: LanguageConfig, parameters: float) -> list[Kernel]:
    """In fp32 always (the sum is another tensor); in half precision only with several micro-batches."""
    e = dtype_bytes(c.training.dtype)
    if c.framework.gradients == "fp32" and c.training.half:
        if (
            c.framework.wgrad_accumulates
        ):  # the product reads and writes fp32 instead of writing half, partly hidden
            return [ops.stream("accumulate", "fp32", parameters / 2, 4, 4 - e)]
        return [ops.stream("accumulate", "fp32", parameters, e + 4, 4)]
    if c.layout.micro_batches == 1:
        return []
    return [ops.stream("accumulate", c.training.dtype, parameters, 2 * e, e)]
