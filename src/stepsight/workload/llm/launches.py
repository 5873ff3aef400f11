"""Launches of a layer that is written in plain PyTorch, where one kernel of ours stands for several of its.

Counted on the operator-by-operator programs of GPT-2, BERT and Llama (`stepsight.workload.llm.eager`),
which follow the code of Hugging Face transformers: what the host launches, whatever a fused kernel does.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.constants import area
from stepsight.overheads.frameworks import profile_of
from stepsight.workload.llm.config import LanguageConfig

OVERHEADS = area("overheads")


@dataclass(frozen=True, slots=True)
class More:
    """Launches beyond the kernels of a pass, forward and backward."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: More) -> More:
        return More(self.forward + other.forward, self.backward + other.backward)

    def times(self, n: int) -> More:
        return More(self.forward * n, self.backward * n)


RMS_NORM = More(7, 15)
"""Cast, square, mean, add, root, two products, cast, for one kernel; backward 16."""
LAYER_NORM = More(0, 1)
"""A third kernel of the weights' gradients."""
ROTARY = More(9, 19)
"""Of queries and keys each: two products, negation, concatenation, sum; backward ten each."""
SEPARATE_QKV = More(2, 6)
"""Three projections for one; backward also the sum of their inputs' gradients."""
SEPARATE_GATE = More(1, 3)
"""Two projections of a gated MLP for one."""
PLAIN_ATTENTION = More(3, 4)
"""Copies of queries, keys and the output between heads and tokens, and the scale."""
FUSED_ATTENTION = More(3, 4)
"""Repeated keys and values, and the output's copy."""
RESIDUALS = More(0, 2)
"""Sums of the gradients of both ways past a block."""
BIAS = More(0, 1)
"""A linear layer's bias gradient, where no kernel of ours is it."""
PER_TENSOR = More(0, 1)
"""Autograd's accumulation of one parameter's gradient."""
DDP_PER_TENSOR = More(0, 1)
"""DDP's hook: the gradient's copy into its bucket or back. It belongs to the last micro-batch, so that it
counts where there is no other."""
AUTOCAST_PER_TENSOR = More(1, 1)
"""A linear layer's weight, bias or input, cast to half precision and its gradient back."""
FSDP_UNIT = More(12, 16)
"""FSDP's hooks around a layer: gather, views of the flat parameter, its release; backward the reduction, too.
Chosen; no run is recorded for it."""
TANH_FAMILIES = ("gpt", "gpt2")
MERGED_QKV = ("gpt", "gpt2", "mpt", "megatron")
"""Families whose code has one projection for queries, keys and values."""


ROUTER = More(38, 24)
"""Small operators of Megatron-Core's router (core_r0.12, moe/router.py) besides its GEMM, softmax
and top-k: casts to fp32 and back, probabilities and map of the chosen experts (zeros, scatter, bool), the
auxiliary loss (scores, their top-k and map, sums, product, scale) and its log."""
DISPATCHER = More(34, 16)
"""Small operators of its token dispatcher (moe/token_dispatcher.py): tokens counted by expert and rank (sums,
slices, an all_gather), four copies to the host, indices of the permutation, the probabilities' own exchange,
what adds up a token's results."""
FUSED_ROUTING = More(24, 12)
"""The same where router and permutation are fused (Transformer Engine's fused_topk_with_score_function and
moe_permute): what is left are the counts and their copies."""
LATENT_ROTARY = More(40, 30)
"""Unfused rotary positions of queries and of the shared key in multi-latent attention: cosines, sines, halves
interleaved, rotated and joined, keys expanded and joined with their other part."""
AFTER_WAIT = 2
"""Launches until the device has work again after the host waited for token counts."""


def expert_launches(c: LanguageConfig) -> More:
    """What the host does for a layer of experts beyond one launch per kernel.

    Small operators cost the host T1 to T4 of one, modules of the profile more.
    """
    if c.framework.plain or c.training.compiled or c.training.fused_experts:
        return More()
    more = FUSED_ROUTING if c.framework.fused_routing else ROUTER + DISPATCHER
    return as_launches(c, more + LATENT_ROTARY if c.model.latent else more)


def as_launches(c: LanguageConfig, operators: More) -> More:
    """Small operators as launches of the framework's profile, by what they cost the host."""
    profile = profile_of(c.host_profile)
    return More(
        round(operators.forward * min(1.0, OVERHEADS.REFERENCE_US / profile.forward_us)),
        round(operators.backward * min(1.0, OVERHEADS.REFERENCE_US / profile.backward_us)),
    )


def writes_out_gelu(c: LanguageConfig) -> bool:
    """Whether GELU runs operator by operator, by its tanh formula (``gelu_new`` of transformers)."""
    return c.framework.plain and not c.training.compiled and c.family in TANH_FAMILIES and not c.model.gated


def plain_launches(c: LanguageConfig) -> More:
    """What the host launches in one layer beyond the layer's kernels; nothing where a compiler or a framework
    fuses."""
    if not c.framework.plain or c.training.compiled:
        return More()
    m, merged = c.model, c.family in MERGED_QKV or c.model.latent is not None
    norms = m.norms_per_layer + (1 if m.qk_norm else 0)
    more = (LAYER_NORM if m.norm == "layer" else More() if c.training.fused_norm else RMS_NORM).times(norms)
    if m.positions == "rotary":
        more += ROTARY
    more += PLAIN_ATTENTION if c.training.attention in ("eager", "fused") else FUSED_ATTENTION
    if not merged:
        more += SEPARATE_QKV
    if m.gated:
        more += SEPARATE_GATE
    if m.bias:
        more += BIAS.times((2 if merged else 4) + writes_out_gelu(c))
    linears = (2 if merged else 4) + (3 if m.gated else 2)
    of_linears = linears * (2 if m.bias else 1)
    if c.training.half and not c.training.master_weights:
        more += AUTOCAST_PER_TENSOR.times(of_linears + linears)
    of_norms = m.norms_per_layer * (2 if m.norm == "layer" else 1) + (2 if m.qk_norm else 0)
    return more + RESIDUALS + _hooks(c, of_linears + of_norms)


def _hooks(c: LanguageConfig, tensors: int) -> More:
    """What autograd and data parallelism do for every parameter, or for a layer that is gathered whole."""
    if c.layout.zero == 3:
        return PER_TENSOR + FSDP_UNIT
    reduced = c.layout.data * c.layout.context > 1 and c.layout.micro_batches == 1
    return (PER_TENSOR + DDP_PER_TENSOR if reduced else PER_TENSOR).times(tensors)
