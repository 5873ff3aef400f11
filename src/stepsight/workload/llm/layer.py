"""One layer's share of one rank: its kernels and messages, forward, backward and run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from stepsight.dtypes import dtype_bytes
from stepsight.kernels.columns import product_flops
from stepsight.program.job import Kernel
from stepsight.program.variants import Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.attention import attention_block, core, mamba_block
from stepsight.workload.llm.block import Block, Message, Pass, keeps_products, shared_over
from stepsight.workload.llm.config import FROZEN_BYTES, LanguageConfig
from stepsight.workload.llm.layout import Layout
from stepsight.workload.llm.mlp import mixture_block, mlp_block

FROZEN = (Role.WGRAD, Role.ACCUMULATE, Role.BIAS)
"""Roles of kernels that a pass through frozen weights leaves out."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerWork:
    """What a layer does with one micro-batch, and the parameters it holds (without and of experts)."""

    forward: Pass
    backward: Pass
    parameters: float
    expert_parameters: float = 0.0


def as_one_layer_sees(c: LanguageConfig) -> LanguageConfig:
    """The configuration as far as a layer's work on one micro-batch depends on it.

    How many replicas and stages there are is left out, so configurations that differ in nothing else share
    their layers: only whether there are several stages (a tied head) and micro-batches (sums of gradients)
    counts, in plain PyTorch whether there are several replicas (hooks), and over how many ranks ZeRO-3 shares
    out the weights.
    """
    s, several = c.layout, min(2, c.layout.micro_batches)
    sharded = s.zero == 3
    layout = Layout(
        tensor=s.tensor, sequence_parallel=s.sequence_parallel, async_tensor=s.async_tensor,
        context=s.context, context_kind=s.context_kind, context_balanced=s.context_balanced,
        expert=s.expert, expert_tensor=s.expert_tensor, expert_dispatch=s.expert_dispatch,
        expert_overlap=s.expert_overlap, zero=3 if sharded else 0,
        shard_group=s.sharded_over if sharded else 0, pipeline=min(2, s.pipeline), micro_batches=several,
        data=min(2, s.data) if c.framework.plain else 1,
    )  # fmt: skip
    training = replace(c.training, recompute="none", recompute_layers=0)
    return replace(
        c, name="", source="", batch_per_rank=c.micro_batch * several, training=training, layout=layout
    )


def layer_work(
    c: LanguageConfig, *, experts: bool, cross: bool = False, recompute: str | None = None, only: str = ""
) -> LayerWork:
    """A layer with or without experts; ``cross``: it also attends to an encoder's output; ``only``: the one
    block that it has in a hybrid model."""
    mode = c.training.recompute if recompute is None else recompute
    return _layer_work(as_one_layer_sees(c), experts, cross, mode, only)


@lru_cache(maxsize=512)
def _layer_work(c: LanguageConfig, experts: bool, cross: bool, mode: str, only: str) -> LayerWork:
    m = c.model
    parts = [mamba_block(c, m.mamba)] if only == "mamba" and m.mamba else []
    if only in ("", "attention"):
        parts += [attention_block(c)] * (2 if cross else 1)
    if only in ("", "mlp"):
        parts.append(mixture_block(c, m.experts) if experts and m.experts else mlp_block(c, m.ffn))
    forward, backward = Pass(), Pass()
    again: Counter[Kernel] = Counter()
    for part in parts:
        forward += Pass.of(
            part.both.forward, part.forward, part.both.kept_bytes, part.more_launches[0], part.waits
        )
        backward += Pass.of(part.both.backward, part.backward, 0.0, part.more_launches[1])
        again.update(part.again)
    extra_forward, extra_backward = extra_launches(c)
    forward += Pass(more_launches=extra_forward)
    backward += Pass(more_launches=extra_backward)
    selected = sum(part.selected_bytes for part in parts)
    if mode == "modules":
        forward, backward = _modules_again(c, parts, forward, backward)
    else:
        forward, backward = _run_again(c, mode, forward, backward, again, selected)
    dense, expert = layer_parameters(c, experts=experts, cross=cross, only=only)
    backward += Pass.of(accumulate(c, dense) + (accumulate(c, expert, HIDDEN_FOR_EXPERTS) if expert else []))
    backward = without_weights(backward) if c.training.frozen else backward
    forward, backward = forward + _cast(c, dense + expert, 4, 2), backward + _cast(c, dense + expert, 2, 4)
    forward, backward = forward + _dequantised(c, dense + expert), backward + _dequantised(c, dense + expert)
    return LayerWork(forward, backward, dense, expert)


def recomputed_flops(c: LanguageConfig) -> float:
    """FLOPs of the matrix products that backward passes repeat, of one step of the whole job."""
    m, s, mode = c.model, c.layout, c.training.recompute
    if mode == "none":
        return 0.0
    kinds = Counter([m.layer_kind(i) for i in range(m.layers)] + [(False, "")] * m.encoder_layers)
    each = 0.0
    for (experts, only), layers in kinds.items():
        once = layer_work(c, experts=experts, recompute="none", only=only).backward.kernels
        more = layer_work(c, experts=experts, only=only).backward.kernels - once
        each += layers * sum(n * product_flops(kernel, masked=False) for kernel, n in more.items())
    repeated = c.training.recompute_layers * s.pipeline / m.layers or 1.0
    return min(repeated, 1.0) * each * s.tensor * s.context * s.data * s.micro_batches


def _cast(c: LanguageConfig, parameters: float, reads: float, writes: float) -> Pass:
    """Without half-precision copies: fp32 weights are cast for the products of a pass, and their gradients
    back; ZeRO-3 casts a rank's own share before it is gathered."""
    if not c.training.half or c.training.master_weights or c.training.frozen:
        return Pass()
    own = parameters / (c.layout.sharded_over if c.layout.zero == 3 else 1)
    return Pass.of([ops.stream("cast", "fp32", own, reads, writes)])


def _dequantised(c: LanguageConfig, parameters: float) -> Pass:
    """QLoRA: 4-bit weights become half-precision ones before the GEMMs of every pass."""
    if c.training.frozen_weights != "nf4":
        return Pass()
    return Pass.of([ops.stream("dequantise", c.training.dtype, parameters, FROZEN_BYTES["nf4"], 2)])


def layer_parameters(
    c: LanguageConfig, *, experts: bool, cross: bool = False, only: str = ""
) -> tuple[float, float]:
    """Parameters of one rank's share of a layer: without experts, and its experts."""
    m, s = c.model, c.layout
    if only == "mamba":
        return m.mamba_parameters / s.tensor + m.norm_parameters, 0.0
    attention = 0 if only == "mlp" else m.attention_parameters * (2 if cross else 1)
    if not experts or m.experts is None:
        mlp = 0 if only == "attention" else m.mlp_parameters
        return (attention + mlp) / s.tensor + m.norm_parameters, 0.0
    e = m.experts
    shared = m.expert_parameters * e.shared_ffn / e.ffn
    dense = (attention + shared) / s.tensor + m.norm_parameters + m.hidden * e.count
    split = s.expert * s.expert_tensor if s.expert > 1 else s.tensor
    return dense, m.expert_parameters * e.count / split


def _run_again(
    c: LanguageConfig,
    mode: str,
    forward: Pass,
    backward: Pass,
    selected: Counter[Kernel],
    selected_bytes: float,
) -> tuple[Pass, Pass]:
    """Recomputation: what the forward pass then keeps, and what the backward pass does once more."""
    if mode == "full":
        kept = dtype_bytes(c.training.dtype) * c.tokens * c.model.hidden / shared_over(c)
        return (replace(forward, kept_bytes=kept), replace(forward, kept_bytes=0.0) + backward)
    if mode == "selective":
        kept = selected_bytes if keeps_products(c) else forward.kept_bytes - _inside(c)
        kept = min(kept, forward.kept_bytes)
        return replace(forward, kept_bytes=kept), backward + Pass(selected, _gathered_again(c, forward))
    return forward, backward


def _modules_again(
    c: LanguageConfig, parts: Sequence[Block], forward: Pass, backward: Pass
) -> tuple[Pass, Pass]:
    """Megatron's selective recomputation: the named modules are run again, and what they made is not kept."""
    named = [b.modules[m] for b in parts for m in c.training.recompute_modules if m in b.modules]
    kept = max(0.0, forward.kept_bytes - sum(one.bytes for one in named))
    waits = sum(b.waits for b in parts) if "moe" in c.training.recompute_modules else 0
    again = Pass.of(
        [k for one in named for k in one.kernels],
        [m for one in named for m in one.messages],
        host_waits=waits,
    )
    return replace(forward, kept_bytes=kept), backward + again


def _gathered_again(c: LanguageConfig, forward: Pass) -> Counter[Message]:
    """torch's selective checkpointing keeps what products and sums gave, not what was gathered for them."""
    if not (keeps_products(c) and c.framework.keeps_gathered):
        return Counter()
    again: Counter[Message] = Counter()
    for message, n in forward.messages.items():
        if message.axis == "tensor" and message.kind == "all_gather":
            again[replace(message, concurrent=())] += n
    return again


def without_weights(work: Pass) -> Pass:
    """A backward pass through frozen weights."""
    kernels = Counter({k: n for k, n in work.kernels.items() if k.kind.role not in FROZEN})
    messages: Counter[Message] = Counter()
    for message, n in work.messages.items():
        messages[replace(message, concurrent=tuple(k for k in message.concurrent if k in kernels))] += n
    return Pass(kernels, messages, work.kept_bytes, work.more_launches, work.host_waits)


def _inside(c: LanguageConfig) -> float:
    """Bytes that lie inside plain attention (scores, probabilities, mask)."""
    if c.training.attention not in ("eager", "fused"):
        return 0.0
    return core(c).kept_bytes


HIDDEN_ACCUMULATION, HIDDEN_FOR_EXPERTS = 0.5, 0.0
"""Of the traffic with which a weight-gradient GEMM adds to the sum, what overlaps with its arithmetic. Public
timings on B200 (SimuMax, b200_bf16_ceperm): half of it for 4,096 tokens, none for an expert's few hundred."""


def accumulate(c: LanguageConfig, parameters: float, hidden: float = HIDDEN_ACCUMULATION) -> list[Kernel]:
    """In fp32 always (the sum is another tensor); in half precision only with several micro-batches."""
    e, fused = dtype_bytes(c.training.dtype), c.framework.wgrad_accumulates
    own = parameters * (1 - hidden if fused else 1)
    if c.framework.gradients == "fp32" and c.training.half:
        # fused: the product reads and writes fp32 instead of writing half
        return [ops.stream("accumulate", "fp32", own, *((4, 4 - e) if fused else (e + 4, 4)))]
    if c.layout.micro_batches == 1:
        return []
    return [ops.stream("accumulate", c.training.dtype, own, *((e, 0) if fused else (2 * e, e)))]


EXTRA_LAUNCHES = {
    "rms_norm": (7, 15),  # cast, square, mean, add, root, two products, cast, for one kernel; backward 16
    "layer_norm": (0, 1),  # a third kernel of the weights' gradients
    "rotary": (9, 19),  # queries and keys each: two products, negation, concatenation, sum; backward ten
    "separate_qkv": (2, 6),  # three projections for one; backward also the sum of their inputs' gradients
    "separate_gate": (1, 3),  # two projections of a gated MLP for one
    "attention": (3, 4),  # copies between heads and tokens and the scale, or repeated keys and values
    "residuals": (0, 2),  # sums of the gradients of both ways past a block
    "bias": (0, 1),  # a linear layer's bias gradient, where no kernel of ours is it
    "parameter": (0, 1),  # autograd's accumulation of one parameter's gradient
    "ddp_parameter": (0, 1),  # DDP's hook: the gradient's copy into its bucket or back
    "autocast": (1, 1),  # a linear layer's weight, bias or input in half precision; its gradient back
    "fsdp_unit": (12, 16),  # chosen: gather, views, release; backward the reduction, too
}
"""Launches of a layer in plain PyTorch, forward and backward, beyond the kernel that stands for its operators
here: counted on the operator-by-operator programs of GPT-2, BERT and Llama (`stepsight.workload.llm.eager`),
which follow Hugging Face transformers."""
MERGED_QKV = ("gpt", "gpt2", "mpt", "megatron")
"""Families whose code has one projection for queries, keys and values."""


def extra_launches(c: LanguageConfig) -> tuple[int, int]:
    """What the host launches in one layer beyond the layer's kernels, forward and backward; nothing where a
    compiler or a framework fuses."""
    if not c.framework.plain or c.training.compiled:
        return 0, 0
    m, merged = c.model, c.family in MERGED_QKV or c.model.latent is not None
    linears = (2 if merged else 4) + (3 if m.gated else 2)
    of_linears = linears * (2 if m.bias else 1)
    of_norms = m.norms_per_layer * (2 if m.norm == "layer" else 1) + (2 if m.qk_norm else 0)
    autocast = c.training.half and not c.training.master_weights
    written_out = m.norm == "layer" or not c.training.fused_norm
    sharded, parameters = c.layout.zero == 3, of_linears + of_norms
    # the hook belongs to the last micro-batch, so that it counts where there is no other
    reduced = c.layout.data * c.layout.context > 1 and c.layout.micro_batches == 1
    counts = {
        f"{m.norm}_norm": (m.norms_per_layer + (1 if m.qk_norm else 0)) * written_out,
        "rotary": m.positions == "rotary",
        "separate_qkv": not merged,
        "separate_gate": m.gated,
        "attention": 1,
        "residuals": 1,
        "bias": ((2 if merged else 4) + c.writes_out_gelu) * m.bias,
        "autocast": (of_linears + linears) * autocast,
        "parameter": 1 if sharded else parameters,
        "ddp_parameter": parameters * (reduced and not sharded),
        "fsdp_unit": sharded,
    }
    forward, backward = (sum(EXTRA_LAUNCHES[part][way] * n for part, n in counts.items()) for way in (0, 1))
    return forward, backward
