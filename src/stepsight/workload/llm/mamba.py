"""A Mamba-2 mixer on one rank: projections, convolution, the state-space scan and the gated norm.

The scan is the chunked form of structured state-space duality (Dao and Gu 2024, arXiv 2405.21060): matrix
products inside chunks and between chunks and states, and a short recurrence over the chunks' states.
"""

from __future__ import annotations

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.block import (
    Block,
    Module,
    casts_weights,
    input_bytes,
    keeps_products,
    kept_inputs,
    shared_over,
    stream_dtype,
)
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.messages import tensor_messages
from stepsight.workload.llm.model import Mamba
from stepsight.workload.llm.operators import ForwardBackward


def mamba_block(c: LanguageConfig, x: Mamba) -> Block:
    m, t = c.model, c.layout.tensor
    dtype, product, e = c.training.dtype, c.training.product_dtype, dtype_bytes(c.training.dtype)
    n, rows = float(c.tokens), c.tokens / shared_over(c)
    inner, mixed = x.inner / t, x.mixed / t
    fused = c.training.fused_norm or c.training.compiled
    both = ops.norm(m.norm, stream_dtype(c), rows, m.hidden, fused=fused)
    modules = {
        "layernorm": Module(tuple(both.forward), input_bytes(c, "attention") * kept_inputs(c) * m.hidden)
    }
    both.kept_bytes += modules["layernorm"].bytes
    scaling, cast = c.training.fp8_scaling, casts_weights(c)
    into = ops.linear(
        product, dtype, n, inner + mixed + x.heads / t, m.hidden, cast_input=False, cast_weight=cast,
        scaling=scaling,
    )  # fmt: skip
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
    both += ops.norm("rms", dtype, n, round(inner), fused=fused)
    out = ops.linear(product, dtype, n, m.hidden, inner, cast_weight=cast, scaling=scaling)
    both.kept_bytes += e * n * inner
    both += out
    both += ops.residual(stream_dtype(c), rows * m.hidden, 0.0, fused=True)
    forward, backward = tensor_messages(c, n * m.hidden, into, out)
    again = [k for k in both.forward if k.family != "gemm"] if keeps_products(c) else []
    selected = 0.5 * e * n * (inner + mixed + m.hidden / t) + e * n * inner
    return Block(both, forward, backward, again, selected, modules=modules)


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
