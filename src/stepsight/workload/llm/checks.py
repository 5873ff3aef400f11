"""What a language model's description must not say: what cannot be, and what would have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepsight.workload.fields import Fields
from stepsight.workload.llm.pipeline import most_pieces, pieces
from stepsight.workload.llm.recipe import recipe_of
from stepsight.workload.operators.optimizers import UPDATES

if TYPE_CHECKING:
    from stepsight.workload.llm.config import LanguageConfig

PLAIN_ATTENTION = ("eager", "fused")
"""Attention whose scores and probabilities are tensors that a backward pass needs."""


def saves_nothing(framework: str, attention: str) -> bool:
    """Whether a framework's selective recomputation only drops what such attention does not keep anyway."""
    return not recipe_of(framework).framework.selects_products and attention not in PLAIN_ATTENTION


def check(c: LanguageConfig, parallel: Fields, training: Fields) -> None:
    """What cannot be, and fields that would have no effect."""
    s, m, t = c.layout, c.model, c.training

    def refuse(where: Fields, key: str, wrong: bool, problem: str, fix: str) -> None:
        if wrong:
            raise where.fail(key, problem, fix)

    widths = (m.heads, m.ffn)
    refuse(
        parallel,
        "tensor",
        any(w % s.tensor for w in widths),
        f"{s.tensor} does not divide heads = {m.heads} and ffn = {m.ffn}",
        "use a divisor",
    )
    refuse(
        parallel,
        "pipeline",
        s.chunks > most_pieces(c),
        f"{s.chunks} pieces for {m.encoder_layers + m.layers} layers, embedding and head",
        "use fewer",
    )
    refuse(
        parallel,
        "sequence_parallel",
        s.sequence_parallel and s.tensor == 1,
        "has no effect without tensor parallelism",
        "set tensor above 1, or leave it out",
    )
    refuse(
        parallel,
        "async_tensor",
        s.async_tensor and s.tensor == 1,
        "has no effect without tensor parallelism",
        "set tensor above 1, or leave it out",
    )
    replicas = s.data * s.context
    for key, used, idle in (
        ("schedule", s.pipeline > 1, ("1f1b",)),
        ("virtual_stages", s.pipeline > 1, (1,)),
        ("context_kind", s.context > 1, (parallel.defaults.get("context_kind", "ring"),)),
        ("context_balanced", s.context > 1 and s.context_kind != "all_to_all" and m.causal, (True,)),
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
        how = "FSDP" if s.zero == 3 else "this layout"
        refuse(parallel, key, stated and not used, f"has no effect on {how}", "leave it out")
    refuse(
        parallel,
        "schedule",
        s.schedule == "interleaved" and s.virtual_stages == 1,
        "an interleaved pipeline has several stages on a rank",
        "set virtual_stages to 2 or more",
    )
    refuse(
        parallel,
        "virtual_stages",
        s.virtual_stages > 1 and s.schedule != "interleaved",
        f"has no effect on {s.schedule}",
        'set schedule = "interleaved"',
    )
    refuse(
        parallel,
        "virtual_stages",
        s.virtual_stages > 1 and s.micro_batches % s.pipeline != 0,
        f"an interleaved pipeline takes micro-batches in groups of its {s.pipeline} stages, and "
        f"{s.micro_batches} micro-batches of a replica are no multiple of that",
        "change global_batch or micro_batch, or leave virtual_stages out",
    )
    refuse(
        parallel,
        "virtual_stages",
        s.virtual_stages > 1 and m.encoder_layers > 0,
        "an encoder and its decoder are not interleaved (Megatron refuses it, too)",
        "leave it out",
    )
    refuse(
        training,
        "recompute",
        t.recompute == "selective" and saves_nothing(c.framework.name, t.attention),
        f"selective recomputation of {c.framework.name} runs the inside of attention again, of which "
        f"{t.attention} keeps nothing: it would cost time and save no memory",
        'use "full", a number of layers, or a framework that keeps products instead (torchtitan)',
    )
    f = c.framework
    fused = t.fused_norm and f.fused_rotary and f.fused_mlp and f.fused_loss and f.name != "jax"
    refuse(
        training,
        "compile",
        t.compiled and training.has("compile") and fused,
        f"has no effect: the kernels of {f.name} are fused already",
        'leave it out, or name a framework that torch.compile speeds up (framework = "torchtitan")',
    )
    fullest = max(piece.layers for piece in pieces(c))
    refuse(
        training,
        "recompute",
        t.recompute_layers > fullest,
        f"{t.recompute_layers} layers to run again, and a stage{' piece' * (s.virtual_stages > 1)} holds "
        f"{fullest} at most",
        f'use at most {fullest}, or "full"',
    )
    refuse(parallel, "expert", s.expert > 1 and m.experts is None, "the model has no experts", "leave it out")
    if m.experts is not None and m.experts.count % s.expert:
        raise parallel.fail(
            "expert", f"{s.expert} ranks do not divide {m.experts.count} experts", "use a divisor"
        )
    refuse(
        parallel,
        "expert_overlap",
        s.expert_overlap == "all" and s.micro_batches == 1,
        "has no effect: there is no other micro-batch whose compute could run alongside exchanges",
        'set a smaller micro_batch, or "experts"',
    )
    refuse(
        parallel,
        "expert_tensor",
        s.tensor % s.expert_tensor != 0 or (m.experts is not None and m.experts.ffn % s.expert_tensor != 0),
        f"{s.expert_tensor} does not divide tensor = {s.tensor} and the experts' ffn",
        "use a divisor",
    )
    inside = s.tensor * s.context * s.data
    refuse(
        parallel,
        "expert",
        inside % (s.expert * s.expert_tensor) != 0,
        f"{s.expert * s.expert_tensor} does not divide the {inside} ranks of a stage",
        "use a divisor of tensor × context × data",
    )
    refuse(
        parallel,
        "shard_group",
        bool(s.shard_group) and (s.data * s.context) % s.shard_group != 0,
        f"{s.shard_group} does not divide data × context = {s.data * s.context}",
        "use a divisor",
    )
    refuse(
        parallel,
        "context",
        c.sequence % s.context != 0,
        f"{s.context} does not divide sequence",
        "use a divisor",
    )
    kv_heads = m.heads if m.latent else m.kv_heads
    refuse(
        parallel,
        "context_kind",
        s.context_kind == "all_to_all" and not _exchanges_evenly(m.heads, kv_heads, s.tensor * s.context),
        f"{m.heads} heads and {kv_heads} heads of keys do not spread over tensor × context = "
        f"{s.tensor * s.context}",
        'use a smaller context, "ring" or "all_gather"',
    )
    refuse(
        training,
        "master_weights",
        training.has("master_weights") and t.master_weights and not t.half,
        "has no effect: only half-precision training has fp32 copies",
        'set precision = "bf16", or leave it out',
    )
    refuse(
        training,
        "optimizer_state",
        t.optimizer_state == "half" and not (t.half and t.master_weights),
        "is half: only half-precision parameters have such a state",
        'set precision = "bf16" without master_weights, or leave it out',
    )
    refuse(
        training,
        "fused_experts",
        t.fused_experts and m.experts is None,
        "has no effect: the model has no experts",
        "leave it out",
    )
    refuse(
        training,
        "gradients",
        training.has("gradients") and not t.half,
        "has no effect: only half-precision training may sum in half precision",
        "leave it out",
    )
    refuse(
        training,
        "fp8_scaling",
        training.has("fp8_scaling") and t.precision != "fp8",
        "has no effect: only fp8 products are scaled",
        'set precision = "fp8", or leave it out',
    )
    refuse(
        training,
        "attention",
        t.dtype == "fp32" and t.attention not in PLAIN_ATTENTION and c.framework.name != "eager",
        f"{t.attention} kernels compute in half precision, and the training is in {t.precision}",
        'set precision = "bf16", or attention = "eager"',
    )
    for key in ("adapter_rank", "adapter_targets", "frozen_weights"):
        refuse(
            training,
            key,
            training.has(key) and not t.frozen,
            "has no effect: all weights are trained",
            'set adapters = "lora", or leave it out',
        )
    for key in ("fp8_weights", "fp8_activations"):
        stated = training.has(key) and training.values[key] is True
        refuse(
            training,
            key,
            stated and not t.quantised,
            f"has no effect in {t.precision}",
            'set precision = "fp8", or leave it out',
        )
    for key, value, wrong, problem in (
        ("loss_scaling", t.loss_scaling, t.precision != "fp16", "only fp16 gradients are scaled"),
        ("loss_scaling", t.loss_scaling, t.optimizer == "none", "nothing is updated"),
        ("offload", t.offload != "none", t.optimizer == "none", "nothing is updated"),
        ("offload", t.offload != "none", not UPDATES[t.optimizer], f"{t.optimizer} keeps no state"),
    ):
        given = training.has(key) and value
        refuse(training, key, given and wrong, f"has no effect: {problem}", "leave it out")
    refuse(
        training,
        "dropout",
        c.training.dropout > 0
        and training.has("dropout")
        and c.family not in ("gpt", "gpt2", "opt", "megatron", "bert", "t5"),
        f"{c.family} is trained without dropout",
        "leave it out",
    )


def _exchanges_evenly(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether ranks that exchange heads get the same number each; heads of keys are repeated where there are
    fewer than ranks (DeepSpeed-Ulysses)."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
