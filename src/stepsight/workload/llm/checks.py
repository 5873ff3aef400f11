"""What a language model's description must not say: what cannot be, and what would have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepsight.program.variants import EFFICIENT
from stepsight.workload.fields import Fields
from stepsight.workload.llm.pipeline import most_pieces, pieces
from stepsight.workload.llm.recipe import recipe_of
from stepsight.workload.operators.optimizers import UPDATES

if TYPE_CHECKING:
    from stepsight.workload.llm.config import LanguageConfig

PLAIN_ATTENTION = ("eager", "fused")
"""Attention whose scores and probabilities are tensors that a backward pass needs."""
WITH_DROPOUT = ("gpt", "gpt2", "opt", "megatron", "bert", "t5")
"""Families that are trained with it."""
Rule = tuple[str, bool, str, str]
"""A field, whether what it says is wrong, why, and what to do instead."""
LEAVE_OUT = "leave it out"


def saves_nothing(framework: str, attention: str) -> bool:
    """Whether a framework's selective recomputation only drops what such attention does not keep anyway."""
    return not recipe_of(framework).framework.selects_products and attention not in PLAIN_ATTENTION


def check(c: LanguageConfig, parallel: Fields, training: Fields) -> None:
    """What cannot be, and fields that would have no effect."""
    for fields, rules in (
        (parallel, _without_effect(c, parallel)),
        (parallel, _groups(c)),
        (parallel, _pipeline(c)),
        (training, _training(c, training)),
    ):
        for key, wrong, problem, fix in rules:
            if wrong:
                raise fields.fail(key, problem, fix)


def _groups(c: LanguageConfig) -> Iterator[Rule]:
    """Groups of ranks that must divide what they share out."""
    s, m, e = c.layout, c.model, c.model.experts
    uneven = m.heads % s.tensor or m.ffn % s.tensor
    shared, inside, cut = s.data * s.context, s.tensor * s.context * s.data, s.expert * s.expert_tensor
    for key, left, problem, fix in (
        ("tensor", uneven, f"{s.tensor} does not divide heads = {m.heads} and ffn = {m.ffn}", ""),
        ("expert", e and e.count % s.expert, f"{s.expert} ranks do not divide {e and e.count} experts", ""),
        ("expert_tensor", s.tensor % s.expert_tensor or (e and e.ffn % s.expert_tensor),
         f"{s.expert_tensor} does not divide tensor = {s.tensor} and the experts' ffn", ""),
        ("expert", inside % cut, f"{cut} does not divide the {inside} ranks of a stage",
         " of tensor × context × data"),
        ("shard_group", s.shard_group and shared % s.shard_group,
         f"{s.shard_group} does not divide data × context = {shared}", ""),
        ("context", c.sequence % s.context, f"{s.context} does not divide sequence", ""),
    ):  # fmt: skip
        yield key, bool(left), problem, f"use a divisor{fix}"
    inner = s.ranks_per_head(m.heads)
    problem = f"{m.heads} heads do not spread over {s.context} ranks, nor do the {m.head_dim} values of each"
    yield "context_kind", m.head_dim % inner > 0, problem, 'use a smaller context, "ring" or "all_gather"'


def _without_effect(c: LanguageConfig, parallel: Fields) -> Iterator[Rule]:
    """Fields that this layout has no use for, unless they ask for what happens anyway."""
    s, replicas = c.layout, c.layout.data * c.layout.context
    for key in ("sequence_parallel", "async_tensor"):
        alone = getattr(s, key) and s.tensor == 1
        problem = "has no effect without tensor parallelism"
        yield key, alone, problem, f"set tensor above 1, or {LEAVE_OUT}"
    how = "FSDP" if s.zero == 3 else "this layout"
    for key, used, idle in (
        ("schedule", s.pipeline > 1, ("1f1b",)),
        ("virtual_stages", s.pipeline > 1, (1,)),
        ("context_kind", s.context > 1, (parallel.defaults.get("context_kind", "ring"),)),
        ("context_balanced", s.context > 1 and s.context_kind != "all_to_all" and c.model.causal, (True,)),
        ("expert_dispatch", s.expert > 1, ("each",)),
        ("expert_overlap", s.expert > 1, ("none", False)),
        ("expert_tensor", s.expert > 1, (1,)),
        ("shard_group", s.zero > 0, (0,)),
        ("reshard", s.zero == 3, (True,)),
        ("prefetch", s.zero > 0, (False,)),
        ("bucket_mb", replicas > 1 and s.zero < 2, ()),
        ("overlap_gradients", replicas > 1 and s.zero < 3, (replicas > 1,)),
    ):
        stated = parallel.has(key) and parallel.values[key] not in idle
        yield key, stated and not used, f"has no effect on {how}", LEAVE_OUT
    no_experts = s.expert > 1 and c.model.experts is None
    yield "expert", no_experts, "the model has no experts", LEAVE_OUT
    alone = s.expert_overlap == "all" and s.micro_batches == 1
    problem = "has no effect: there is no other micro-batch whose compute could run alongside exchanges"
    yield "expert_overlap", alone, problem, 'set a smaller micro_batch, or "experts"'


def _pipeline(c: LanguageConfig) -> Iterator[Rule]:
    """What a pipeline cannot be."""
    s, m, several = c.layout, c.model, c.layout.virtual_stages > 1
    layers = m.encoder_layers + m.layers
    problem = f"{s.chunks} pieces for {layers} layers, embedding and head"
    yield "pipeline", s.chunks > most_pieces(c), problem, "use fewer"
    single = s.schedule == "interleaved" and not several
    problem = "an interleaved pipeline has several stages on a rank"
    yield "schedule", single, problem, "set virtual_stages to 2 or more"
    fix = 'set schedule = "interleaved"'
    yield "virtual_stages", several and s.schedule != "interleaved", f"has no effect on {s.schedule}", fix
    problem = (
        f"an interleaved pipeline takes micro-batches in groups of its {s.pipeline} stages, and "
        f"{s.micro_batches} micro-batches of a replica are no multiple of that"
    )
    fix = "change global_batch or micro_batch, or leave virtual_stages out"
    yield "virtual_stages", several and s.micro_batches % s.pipeline != 0, problem, fix
    problem = "an encoder and its decoder are not interleaved (Megatron refuses it, too)"
    yield "virtual_stages", several and m.encoder_layers > 0, problem, LEAVE_OUT


def _training(c: LanguageConfig, training: Fields) -> Iterator[Rule]:
    t, f, m = c.training, c.framework, c.model
    useless = t.recompute == "selective" and saves_nothing(f.name, t.attention)
    problem = (
        f"selective recomputation of {f.name} runs the inside of attention again, of which {t.attention} "
        "keeps nothing: it would cost time and save no memory"
    )
    fix = 'use "full", a number of layers, or a framework that keeps products instead (torchtitan)'
    yield "recompute", useless, problem, fix
    fullest, piece = max(p.layers for p in pieces(c)), " piece" * (c.layout.virtual_stages > 1)
    problem = f"{t.recompute_layers} layers to run again, and a stage{piece} holds {fullest} at most"
    yield "recompute", t.recompute_layers > fullest, problem, f'use at most {fullest}, or "full"'
    half = t.dtype == "fp32" and t.attention not in (*PLAIN_ATTENTION, EFFICIENT) and f.name != "eager"
    problem = f"{t.attention} kernels compute in half precision, and the training is in {t.precision}"
    yield "attention", half, problem, 'set precision = "bf16", or attention = "eager"'
    small_state = t.optimizer_state == "half" and not (t.half and t.master_weights)
    problem = "is half: only half-precision parameters have such a state"
    fix = f'set precision = "bf16" without master_weights, or {LEAVE_OUT}'
    yield "optimizer_state", small_state, problem, fix
    dropout = t.dropout > 0 and training.has("dropout") and c.family not in WITH_DROPOUT
    yield "dropout", dropout, f"{c.family} is trained without dropout", LEAVE_OUT
    stated = {key for key in training.values if training.values[key] not in (False, "none")}
    loss = f.fused_loss or f.sharded_loss
    fused = t.fused_norm and f.fused_rotary and f.fused_mlp and loss and f.name != "jax"
    other = 'leave it out, or name a framework that torch.compile speeds up (framework = "torchtitan")'
    bf16, fp8 = f'set precision = "bf16", or {LEAVE_OUT}', f'set precision = "fp8", or {LEAVE_OUT}'
    lora, nothing = f'set adapters = "lora", or {LEAVE_OUT}', t.optimizer == "none"
    half_sums = "only half-precision training may sum in half precision"
    for key, idle, why, fix in (
        ("compile", t.compiled and fused, f": the kernels of {f.name} are fused already", other),
        ("master_weights", not t.half, ": only half-precision training has fp32 copies", bf16),
        ("fused_experts", m.experts is None, ": the model has no experts", LEAVE_OUT),
        ("gradients", not t.half, f": {half_sums}", LEAVE_OUT),
        ("fp8_scaling", t.precision != "fp8", ": only fp8 products are scaled", fp8),
        ("adapter_rank", not t.frozen, ": all weights are trained", lora),
        ("adapter_targets", not t.frozen, ": all weights are trained", lora),
        ("frozen_weights", not t.frozen, ": all weights are trained", lora),
        ("fp8_weights", not t.quantised, f" in {t.precision}", fp8),
        ("fp8_activations", not t.quantised, f" in {t.precision}", fp8),
        ("loss_scaling", t.precision != "fp16", ": only fp16 gradients are scaled", LEAVE_OUT),
        ("loss_scaling", nothing, ": nothing is updated", LEAVE_OUT),
        ("offload", nothing, ": nothing is updated", LEAVE_OUT),
        ("offload", not UPDATES[t.optimizer], f": {t.optimizer} keeps no state", LEAVE_OUT),
    ):
        yield key, key in stated and idle, f"has no effect{why}", fix
