"""What the blocks of a layer share: kernels with their messages, and how activations are split and kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.operators import ForwardBackward
from stepsight.workload.llm.work import Message

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
    forward: list[Message]
    backward: list[Message]
    again: list[Kernel]
    selected_bytes: float
    more_launches: tuple[int, int] = (0, 0)
    modules: dict[str, Module] = field(default_factory=dict)
    waits: int = 0


def shared_over(c: LanguageConfig) -> int:
    """Ranks over which the regions between tensor-parallel blocks are split."""
    return c.layout.tensor if c.layout.sequence_parallel else 1


def kept_inputs(c: LanguageConfig) -> float:
    """Tokens of a block's input that a rank keeps for the weights' gradients."""
    return c.tokens if c.framework.keeps_gathered else c.tokens / shared_over(c)


def input_bytes(c: LanguageConfig, part: str) -> float:
    """Bytes kept for each element of a GEMM's input: in fp8 where products are; frozen weights need none,
    their adapters the input as it is, and 4-bit ones keep it in any case (bitsandbytes' MatMul4Bit)."""
    if c.training.frozen:
        kept = c.training.adapts(part) or c.training.frozen_weights == "nf4"
        return dtype_bytes(c.training.dtype) if kept else 0.0
    if c.training.quantised:
        return 1.0 if c.training.precision == "fp8" else FP4_BYTES
    return dtype_bytes(c.training.dtype)


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
