"""Messages inside a layer: tensor groups' sums, gathers and scatters, and attention over a split sequence."""

from __future__ import annotations

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.program.variants import Kind, Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.operators import ForwardBackward
from stepsight.workload.llm.work import Message


def tensor_messages(
    c: LanguageConfig, elements: float, into: ForwardBackward, out: ForwardBackward, *, inputs: int = 1
) -> tuple[list[Message], list[Message]]:
    """A block's sums over the tensor group: one each way, or gather and scatter with sequence parallelism.

    ``into`` and ``out`` are its first and last products; ``inputs``: the first is really this many, each of
    which sums its input's gradient by itself. Backward, that sum runs alongside the weight gradient's
    product, and with sequence parallelism the input is gathered again during the input gradient's, where the
    framework does so. ``async_tensor``: products are cut so that transfers run alongside them forward and
    backward (Megatron's userbuffers, PyTorch's AsyncTP); nanotron's does so backward only.
    """
    if c.layout.tensor == 1:
        return [], []
    dtype = c.training.dtype
    bytes_ = dtype_bytes(dtype) * elements
    concurrent_w, concurrent_d = products(into.backward, Role.WGRAD), products(into.backward, Role.DGRAD)
    concurrent_w = concurrent_w if c.framework.overlaps_sums else ()
    if not c.layout.sequence_parallel:
        return (
            [Message("tensor", "all_reduce", bytes_, dtype)],
            [Message("tensor", "all_reduce", bytes_, dtype, concurrent_w)] * inputs,
        )
    cut = c.layout.async_tensor and c.framework.cuts_products
    first, last, again = (
        (
            products(into.forward, None),
            products(out.forward, None),
            products(out.backward, Role.DGRAD),
        )
        if cut
        else ((), (), ())
    )
    concurrent = concurrent_d if cut and not concurrent_w else concurrent_w
    backward = [
        Message("tensor", "all_gather", bytes_, dtype, again),
        Message("tensor", "reduce_scatter", bytes_, dtype, concurrent),
    ]
    if not c.framework.keeps_gathered:
        backward.insert(1, Message("tensor", "all_gather", bytes_, dtype, concurrent_d))
    forward = [
        Message("tensor", "all_gather", bytes_, dtype, first),
        Message("tensor", "reduce_scatter", bytes_, dtype, last),
    ]
    return forward, backward


def products(kernels: list[Kernel], role: Role | None) -> tuple[Kernel, ...]:
    return tuple(k for k in kernels if k.family == "gemm" and k.kind == Kind(role=role))


def context_messages(c: LanguageConfig, core: ForwardBackward) -> tuple[list[Message], list[Message]]:
    """Keys and values travel round the ring during attention, or are gathered before it; or all three and
    the result change from parts of the sequence to parts of the heads and back."""
    m, parts = c.model, c.layout.context
    if parts == 1:
        return [], []
    if c.layout.context_kind == "all_to_all":
        e = dtype_bytes(c.training.dtype)
        inward, outward = (
            Message("context", "all_to_all", e * elements, c.training.dtype) for elements in _exchanged(c)
        )
        return [inward, outward], [outward, inward]
    kv = max(1, m.kv_heads // c.layout.tensor) * m.head_dim
    bytes_ = 2.0 * dtype_bytes(c.training.dtype) * c.tokens * kv
    dtype = c.training.dtype
    if c.layout.context_kind == "all_gather":
        gather = Message("context", "all_gather", bytes_ * parts, dtype)
        return [gather], [gather, Message("context", "reduce_scatter", bytes_ * parts, dtype)]
    hop = Message("context", "send_recv", bytes_, dtype, tuple(core.forward[1:2]))
    back = Message("context", "send_recv", 2 * bytes_, dtype, tuple(core.backward[:1]))
    return [hop] * (parts - 1), [back] * (parts - 1)


def exchange_copies(c: LanguageConfig) -> ForwardBackward:
    """Elements put in order for an exchange of heads, and again after it."""
    if c.layout.context == 1 or c.layout.context_kind != "all_to_all":
        return ForwardBackward()
    e = dtype_bytes(c.training.dtype)
    copies = [
        ops.stream("exchange", c.training.dtype, elements, e, e)
        for elements in _exchanged(c)
        for _ in range(2)
    ]
    return ForwardBackward(copies, list(copies))


def _exchanged(c: LanguageConfig) -> tuple[float, float]:
    """Elements of queries, keys and values, and of the result, that a rank exchanges."""
    m, t = c.model, c.layout.tensor
    if m.latent is not None:
        query = m.heads * (m.latent.nope_dim + m.latent.rope_dim) / t
        result = m.heads * m.latent.v_dim / t
        return c.tokens * (2 * query + result), c.tokens * result
    result = m.heads * m.head_dim / t
    kv_heads = max(m.kv_heads, t * c.layout.context)  # repeated where there are fewer than ranks
    return c.tokens * (result + 2 * kv_heads * m.head_dim / t), c.tokens * result
