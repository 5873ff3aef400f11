"""What mixes a layer's tokens on one rank: attention with its projections and positions, or a Mamba-2 mixer.

The scan of a mixer is the chunked form of structured state-space duality (Dao and Gu 2024, arXiv 2405.21060):
matrix products inside chunks and between chunks and states, and a short recurrence over the chunks' states.
"""

from __future__ import annotations

import math

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.block import (
    Block,
    Module,
    adapter,
    context_messages,
    exchange_copies,
    frozen_input_bytes,
    input_bytes,
    keeps_products,
    linear,
    shared_over,
    stream_dtype,
    tensor_messages,
)
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.model import Mamba
from stepsight.workload.llm.operators import ForwardBackward


def attention_block(c: LanguageConfig) -> Block:
    m, t, f, e = c.model, c.layout.tensor, c.framework, dtype_bytes(c.training.dtype)
    dtype, n = c.training.dtype, float(c.tokens)
    block = Block.begin(c, "attention")
    both, modules, again = block.both, block.modules, block.again
    wide = (m.heads + 2 * m.kv_heads) * m.head_dim / t
    if m.latent is None:
        qkv = linear(c, n, wide, m.hidden, bias=m.bias, cast_input=False)
    else:
        qkv = _latent_projections(c, n)
    both += qkv
    both += adapter(c, "attention", n, wide, m.hidden)
    projected = e * n * (_projected(c) if m.latent else wide)
    both.kept_bytes += projected
    turned = n * (m.heads + m.kv_heads) * m.head_dim / t
    if m.positions == "rotary":
        turn = ops.rotary(dtype, turned, m.head_dim, fused=f.fused_rotary or c.training.compiled)
        both += turn
        again += turn.forward if keeps_products(c) else []
    if m.qk_norm:
        both += ops.norm(m.norm, dtype, turned / m.head_dim, m.head_dim, fused=c.training.fused_norm)
    inner = core(c)
    both += inner
    modules["core_attn"] = Module(tuple(inner.forward), inner.kept_bytes)
    if m.latent:  # the low-rank projections stay
        latent = e * n * (m.latent.q_rank + m.latent.kv_rank + m.latent.rope_dim)
        up = tuple(k for k in qkv.forward if k.family == "gemm" and k.dim("k") < m.hidden)
        modules["mla_up_proj"] = Module(up, projected - latent)
    both += exchange_copies(c)
    again += inner.forward if not keeps_products(c) else []
    v_dim = m.latent.v_dim if m.latent else m.head_dim
    fp8_input = input_bytes(c, "attention") if c.training.quantised and not c.training.frozen else 0.0
    both.kept_bytes += (e + fp8_input + frozen_input_bytes(c)) * n * m.heads * v_dim / t
    out = linear(c, n, m.hidden, m.heads * v_dim / t)
    both += out
    both += adapter(c, "attention", n, m.hidden, m.heads * v_dim / t)
    if keeps_products(c):  # every other product: the keys', which are few, and the last
        again.append(out.forward[-1])
    block.end(c, qkv, out)
    forward, backward = context_messages(c, inner)
    block.forward += forward
    block.backward += backward
    block.selected_bytes = e * n * m.hidden / shared_over(c) + e * n * m.heads * v_dim / t
    block.selected_bytes += 0.5 * e * n * (_projected(c) + m.hidden / t)
    return block


def _projected(c: LanguageConfig) -> float:
    """Values of a token that the projections of attention's input give on one rank."""
    m, t, a = c.model, c.layout.tensor, c.model.latent
    if a is None:
        return (m.heads + 2 * m.kv_heads) * m.head_dim / t
    return a.q_rank + a.kv_rank + a.rope_dim + m.heads * (2 * a.nope_dim + a.rope_dim + a.v_dim) / t


def _latent_projections(c: LanguageConfig, n: float) -> ForwardBackward:
    """DeepSeek's low-rank projections; the ranks hold the down-projections whole."""
    m, t, a = c.model, c.layout.tensor, c.model.latent
    assert a is not None
    dtype, fused = c.training.dtype, c.training.fused_norm
    q_dim = m.heads * (a.nope_dim + a.rope_dim) / t
    both = ForwardBackward()
    if a.q_rank:
        both += linear(c, n, a.q_rank, m.hidden, cast_weight=True)
        both += ops.norm("rms", dtype, n, a.q_rank, fused=fused)
    both += linear(c, n, q_dim, a.q_rank or m.hidden, cast_weight=True)
    both += linear(c, n, a.kv_rank + a.rope_dim, m.hidden, cast_weight=True)
    both += ops.norm("rms", dtype, n, a.kv_rank, fused=fused)
    both += linear(c, n, m.heads * (a.nope_dim + a.v_dim) / t, a.kv_rank, cast_weight=True)
    width = m.heads * (a.nope_dim + a.rope_dim) / t
    both += ForwardBackward(
        [ops.stream("cat", dtype, 2 * n * width, 2, 2)], [ops.stream("cat", dtype, 2 * n * width, 2, 2)]
    )
    return both


def core(c: LanguageConfig) -> ForwardBackward:
    """Attention proper, for this rank's heads and its part of the sequence.

    Where ranks exchange heads for parts of the sequence, each sees all of it with its share of the heads.
    """
    m, s = c.model, c.training
    exchanged = c.layout.context_kind == "all_to_all"
    parts = 1 if exchanged else c.layout.context
    t = c.layout.tensor * (c.layout.context // c.layout.ranks_per_head(m.heads) if exchanged else 1)
    heads, kv_heads = m.heads // t, max(1, m.kv_heads // t)
    dim = m.head_dim
    if m.latent:  # kernels for its two widths run as those for heads of 128, by arithmetic
        dim = 128
        heads = round(heads * (m.latent.nope_dim + m.latent.rope_dim + m.latent.v_dim) / 2 / dim)
        kv_heads = heads
    batch, length = c.micro_batch * c.sequence // c.attended, c.attended
    own = length // parts

    def flash(q: int, kv: int, *, causal: bool, window: int = 0) -> ForwardBackward:
        return ops.flash(
            s.dtype, s.attention, batch, heads, kv_heads, q, kv, dim, causal=causal, window=window
        )

    if m.window and m.window < length:
        full = m.unwindowed_layers / m.layers
        windowed = m.window - m.window**2 / (2 * length)  # the first tokens see fewer
        seen = int(windowed + full * (length / 2 - windowed))
        if parts > 1:
            return flash(own, seen, causal=False)
        mean = max(1, round(length * (1 - math.sqrt(1 - 2 * seen / length))))  # of all layers' windows
        return flash(length, length, causal=True, window=mean)
    if s.attention in ("eager", "fused"):
        return ops.plain_attention(
            s.dtype, batch, heads, own, length, dim, s.dropout, fused=s.attention == "fused",
            product=s.wide_product,
        )  # fmt: skip
    both = flash(own, own, causal=m.causal)
    # Each further step sees half of another rank's keys; all of them where not causal, and on the last rank
    # where parts of the sequence lie one after the other.
    seen = own // 2 if m.causal and c.layout.context_balanced else own
    for _ in range(parts - 1):
        both += flash(own, seen, causal=False)
    return both


def mamba_block(c: LanguageConfig, x: Mamba) -> Block:
    m, t, n = c.model, c.layout.tensor, float(c.tokens)
    dtype, e = c.training.dtype, dtype_bytes(c.training.dtype)
    inner, mixed = x.inner / t, x.mixed / t
    block = Block.begin(c, "attention")
    both = block.both
    into = linear(c, n, inner + mixed + x.heads / t, m.hidden, cast_input=False)
    both += into
    both.kept_bytes += e * n * (inner + mixed)
    both += ForwardBackward(  # depthwise convolution with SiLU
        [ops.stream("conv1d", dtype, n * mixed, e, e)],
        [ops.stream("conv1d", dtype, n * mixed, 2 * e, e)],
        e * n * mixed,
    )
    both += _scan(c, x)
    gate = ops.stream("silu", dtype, n * inner, 2 * e, e)
    both += ForwardBackward([gate], [ops.stream("silu_backward", dtype, n * inner, 3 * e, 2 * e)])
    both += ops.norm("rms", dtype, n, round(inner), fused=c.training.fused_norm or c.training.compiled)
    out = linear(c, n, m.hidden, inner)
    both.kept_bytes += e * n * inner
    both += out
    both += ops.residual(stream_dtype(c), n / shared_over(c) * m.hidden, 0.0, fused=True)
    block.forward, block.backward = tensor_messages(c, n * m.hidden, into, out)
    block.again = [k for k in both.forward if k.family != "gemm"] if keeps_products(c) else []
    block.selected_bytes = 0.5 * e * n * (inner + mixed + m.hidden / t) + e * n * inner
    return block


def _scan(c: LanguageConfig, x: Mamba) -> ForwardBackward:
    """Forward: C·Bᵀ of a chunk, that times the inputs, a chunk's state, and what earlier states add.
    Backward: the gradients of each, after scores and states have been computed once more."""
    dtype, t = c.training.dtype, c.layout.tensor
    chunks = max(1, round(c.tokens / x.chunk))
    heads, groups = max(1, x.heads // t), max(1, x.groups // t)

    def gemm(batch: int, m: int, n: int, k: int) -> Kernel:
        return Kernel.of("gemm", dtype, operator="bmm", batch=batch, m=m, n=n, k=k)

    scores = gemm(chunks * groups, x.chunk, x.chunk, x.state)
    inside = gemm(chunks * heads, x.chunk, x.head_dim, x.chunk)
    states = gemm(chunks * heads, x.state, x.head_dim, x.chunk)
    added = gemm(chunks * heads, x.chunk, x.head_dim, x.state)
    carried = ops.stream("state passing", "fp32", chunks * heads * x.head_dim * x.state, 4, 4)
    decay = ops.stream("decay", "fp32", float(chunks * heads * x.chunk), 8, 8)
    forward = [decay, scores, inside, states, carried, added]
    products = [scores, inside, states, added]
    return ForwardBackward(forward, [decay, scores, states, carried, *products, *products, carried])
