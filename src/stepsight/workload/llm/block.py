"""What a rank does in one pass: kernels and messages by count; what the blocks of a layer share.

Kernels of a pass are counted, not listed: layers are identical, so a stage's pass is its layer's times the
number of layers. A job holds them condensed, one launch for each category (`condensed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stepsight.dtypes import dtype_bytes
from stepsight.kernels.families import category
from stepsight.program.job import Copies, Kernel
from stepsight.program.variants import Kind, Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.operators import ForwardBackward

Counted = TypeVar("Counted")


@dataclass(frozen=True, slots=True)
class Message:
    """A collective inside a pass: over which axis, of what kind, how many bytes.

    ``concurrent``: the kernels that run while it is under way; without them, compute waits for it.
    ``hidden``: it runs alongside all else that the pass computes, which stands for another micro-batch's
    compute.
    """

    axis: str
    kind: str
    bytes: float
    dtype: str = "bf16"
    concurrent: tuple[Kernel, ...] = ()
    hidden: bool = False
    copies: Copies | None = None


@dataclass(slots=True, eq=False)
class Pass:
    """Kernels and messages by count, and the bytes kept for the backward pass.

    ``more_launches``: what the host launches beyond one of each, where a kernel here stands for several;
    ``host_waits``: how often the host waits for the device, to read what decides the next launches.
    """

    kernels: Counter[Kernel] = field(default_factory=Counter)
    messages: Counter[Message] = field(default_factory=Counter)
    kept_bytes: float = 0.0
    more_launches: int = 0
    host_waits: int = 0

    @classmethod
    def of(
        cls,
        kernels: Iterable[Kernel],
        messages: Iterable[Message] = (),
        kept_bytes: float = 0.0,
        more_launches: int = 0,
        host_waits: int = 0,
    ) -> Pass:
        return cls(Counter(kernels), Counter(messages), kept_bytes, more_launches, host_waits)

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            _added(self.kernels, other.kernels),
            _added(self.messages, other.messages),
            self.kept_bytes + other.kept_bytes,
            self.more_launches + other.more_launches,
            self.host_waits + other.host_waits,
        )

    def times(self, n: int) -> Pass:
        """This pass over ``n`` identical layers."""
        if n == 1:
            return self
        return Pass(
            Counter({k: c * n for k, c in self.kernels.items()}),
            Counter({m: c * n for m, c in self.messages.items()}),
            self.kept_bytes * n,
            self.more_launches * n,
            self.host_waits * n,
        )

    def without_overlap(self) -> Pass:
        """This pass without a concurrent micro-batch."""
        if not any(m.hidden for m in self.messages):
            return self
        messages = Counter({replace(m, hidden=False): n for m, n in self.messages.items()})
        return replace(self, messages=messages)

    @property
    def launches(self) -> int:
        """Kernels and collectives that the host launches."""
        return sum(self.kernels.values()) + sum(self.messages.values()) + self.more_launches


def _added(one: Counter[Counted], other: Counter[Counted]) -> Counter[Counted]:
    """Both counts together; what `Counter` itself would look up one by one is copied."""
    if not one:
        return other.copy()
    total = one.copy()
    for what, count in other.items():
        total[what] = total.get(what, 0) + count
    return total


def condensed(kernels: Mapping[Kernel, int], name: str) -> tuple[Kernel, ...]:
    """One launch for each category of kernels, standing for all of them one after the other."""
    groups: dict[str, list[tuple[Kernel, int]]] = {}
    for kernel, count in kernels.items():
        groups.setdefault(category(kernel.family), []).append((kernel, count))
    return tuple(
        Kernel(parts[0][0].family, dtype=parts[0][0].dtype, operator=f"{name} {label}", parts=tuple(parts))
        for label, parts in groups.items()
    )


FP4_BYTES = 0.5625
"""Bytes of an NVFP4 value with its share of a scale for each 16 (fp8)."""


@dataclass(frozen=True, slots=True)
class Module:
    """A part of a block that may be run again in the backward pass: its kernels, the bytes that then need not
    be kept, and the messages inside it."""

    kernels: tuple[Kernel, ...]
    bytes: float
    messages: tuple[Message, ...] = ()


@dataclass(slots=True)
class Block:
    """One residual block with the messages of each pass; ``again``: what selective recomputation repeats;
    ``selected_bytes``: what torch's selective checkpointing keeps of it (every other product's output, and
    what attention and exchanges gave: torchtitan's default policy);
    ``more_launches``: forward and backward, what the host launches beyond one of each. ``modules``: what
    Megatron's selective recomputation may run again, by its names. ``waits``: how often the host waits for
    the device in a forward pass: token counts, which size exchanges and GEMMs, are copied to it."""

    both: ForwardBackward
    forward: list[Message] = field(default_factory=list)
    backward: list[Message] = field(default_factory=list)
    again: list[Kernel] = field(default_factory=list)
    selected_bytes: float = 0.0
    more_launches: tuple[int, int] = (0, 0)
    modules: dict[str, Module] = field(default_factory=dict)
    waits: int = 0

    @classmethod
    def begin(cls, c: LanguageConfig, part: str) -> Block:
        """The norm in front of attention's or the MLP's projections, whose input its result is."""
        block = cls(norm(c))
        kept = input_bytes(c, part) * kept_inputs(c) * c.model.hidden
        block.modules["layernorm"] = Module(tuple(block.both.forward), kept)
        block.both.kept_bytes += kept
        block.again += block.both.forward if keeps_products(c) else []
        return block

    def end(self, c: LanguageConfig, into: ForwardBackward, out: ForwardBackward, inputs: int = 1) -> None:
        """The sum with what went past the block, a second norm (Gemma 2), and the tensor group's messages."""
        elements = c.tokens / shared_over(c) * c.model.hidden
        dropout, fused = c.training.dropout, c.framework.fused_mlp
        self.both += ops.residual(stream_dtype(c), elements, dropout, fused=fused)
        if c.model.norms_per_layer == 4:
            rows, fused = c.tokens / shared_over(c), c.training.fused_norm
            self.both += ops.norm(c.model.norm, stream_dtype(c), rows, c.model.hidden, fused=fused)
        forward, backward = tensor_messages(c, c.tokens * c.model.hidden, into, out, inputs=inputs)
        self.forward += forward
        self.backward += backward


def norm(c: LanguageConfig, dtype: str = "") -> ForwardBackward:
    """A norm of the stream between blocks."""
    rows, fused = c.tokens / shared_over(c), c.training.fused_norm or c.training.compiled
    return ops.norm(c.model.norm, dtype or stream_dtype(c), rows, c.model.hidden, fused=fused)


def linear(
    c: LanguageConfig, tokens: float, out: float, into: float, *, bias: bool = False, batch: int = 1,
    cast_input: bool = True, cast_weight: bool | None = None,
) -> ForwardBackward:  # fmt: skip
    """A projection in the type of the training's products."""
    t = c.training
    return ops.linear(
        t.product_dtype, t.dtype, tokens, out, into, bias=bias, batch=batch, cast_input=cast_input,
        cast_weight=casts_weights(c) if cast_weight is None else cast_weight, scaling=t.fp8_scaling,
    )  # fmt: skip


def shared_over(c: LanguageConfig) -> int:
    """Ranks over which the regions between tensor-parallel blocks are split."""
    return c.layout.tensor if c.layout.sequence_parallel else 1


def kept_inputs(c: LanguageConfig) -> float:
    """Tokens of a block's input that a rank keeps for the weights' gradients."""
    return c.tokens if c.framework.keeps_gathered else c.tokens / shared_over(c)


def input_bytes(c: LanguageConfig, part: str) -> float:
    """Bytes kept for each element of a GEMM's input: in fp8 where products are; frozen weights need none,
    their adapters the input as it is."""
    if c.training.frozen:
        return dtype_bytes(c.training.dtype) * c.training.adapts(part) + frozen_input_bytes(c)
    if c.training.quantised:
        return 1.0 if c.training.precision == "fp8" else FP4_BYTES
    return dtype_bytes(c.training.dtype)


def frozen_input_bytes(c: LanguageConfig) -> float:
    """The same for frozen weights in 4 bits, as old libraries keep it."""
    if c.training.frozen_weights != "nf4":
        return 0.0
    return float(dtype_bytes(c.training.dtype) * c.framework.kept_4bit_inputs)


def stored_less(c: LanguageConfig) -> float:
    """Bytes saved for each input of an activation function that is stored in fp8."""
    return dtype_bytes(c.training.dtype) - 1.0 if c.training.fp8_activations else 0.0


def adapter(c: LanguageConfig, part: str, tokens: float, out: float, into: float) -> ForwardBackward:
    """The low-rank path next to a frozen projection; none where it has no adapter.

    With sequence parallelism the first product sees a rank's own part of the sequence.
    """
    if not c.training.adapts(part):
        return ForwardBackward()
    return ops.adapter(
        c.training.dtype, tokens, out, into, c.training.adapter_rank,
        own=tokens / shared_over(c), decomposed=c.training.adapters == "dora",
    )  # fmt: skip


def keeps_products(c: LanguageConfig) -> bool:
    """Selective recomputation keeps the outputs of products and attention."""
    return c.framework.selects_products


def casts_weights(c: LanguageConfig) -> bool:
    """Weights are cast to fp8 once a step and kept for all micro-batches."""
    return c.layout.micro_batches == 1


def stream_dtype(c: LanguageConfig) -> str:
    """The type of the stream between blocks: under autocast, embeddings, norms and sums stay in fp32."""
    autocast = c.framework.plain and c.training.half and not c.training.master_weights
    return "fp32" if autocast else c.training.dtype


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
        (products(into.forward, None), products(out.forward, None), products(out.backward, Role.DGRAD))
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
    """Elements of queries, keys and values, and of the result, that a rank exchanges; ranks that compute the
    same heads each get them."""
    m, t, inner = c.model, c.layout.tensor, c.layout.ranks_per_head(c.model.heads)
    if m.latent is not None:
        query = m.heads * (m.latent.nope_dim + m.latent.rope_dim) / t
        result = m.heads * m.latent.v_dim / t
        return inner * c.tokens * (2 * query + result), c.tokens * result
    result = m.heads * m.head_dim / t
    kv_heads = max(m.kv_heads, t * c.layout.context // inner)  # repeated where there are fewer than ranks
    return inner * c.tokens * (result + 2 * kv_heads * m.head_dim / t), c.tokens * result
