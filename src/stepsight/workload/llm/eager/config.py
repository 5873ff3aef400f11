"""What the operator-by-operator emission of a transformer reads of its description."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsight.workload.llm.config import LanguageConfig, LanguageTraining
from stepsight.workload.llm.layout import Layout
from stepsight.workload.llm.model import FAMILIES
from stepsight.workload.operators.optimizers import OPTIMIZERS
from stepsight.workload.training import PRECISIONS, Training

EAGER_FAMILIES = ("bert", "gpt2", "xlnet", "gpt", "opt", "llama")
SPLITTABLE = ("gpt2", "gpt", "opt")
"""Families that can be spread by tensor and pipeline parallelism."""


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Model, batch and layout of one transformer.

    ``kv_heads`` below ``heads`` is grouped-query attention (Llama). ``head``: lm ends in the
    vocabulary, none stops at the last hidden state. ``data``, ``tensor`` and ``pipeline`` are
    the sizes of the parallel groups; ``micro_batches`` the pieces a rank's batch is cut into.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    sequence: int
    batch_per_rank: int
    training: Training
    kv_heads: int
    head: str = "lm"
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    bucket_mb: float = 25.0
    source: str = field(default="", compare=False)

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def whole(self) -> StagePart:
        return StagePart(self.layers)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class StagePart:
    """The part of a model that one pipeline stage holds."""

    layers: int
    first: bool = True
    last: bool = True


def eager_step(c: LanguageConfig) -> TransformerConfig | None:
    """The description as the emission reads it; None where passes of condensed kernels stand for the step: in
    other frameworks, and for what no family here writes out."""
    m, s = c.model, c.layout
    if c.framework.name != "eager" or not _usual_model(c) or not _usual_training(c.training):
        return None
    if not _plain_layout(s) or m.layers % s.pipeline:
        return None
    if s.tensor * s.pipeline * s.micro_batches > 1 and c.family not in SPLITTABLE:
        return None
    return TransformerConfig(
        name=c.name, family=c.family, layers=m.layers, hidden=m.hidden, heads=m.heads, ffn=m.ffn,
        vocab=m.vocab, sequence=c.sequence, batch_per_rank=c.batch_per_rank, training=_training(c.training),
        kv_heads=m.kv_heads, head=m.head, data=s.data, tensor=s.tensor, pipeline=s.pipeline,
        micro_batches=s.micro_batches, bucket_mb=s.bucket_mb, source=c.source,
    )  # fmt: skip


def _usual_model(c: LanguageConfig) -> bool:
    """A model as its family has it, without experts, windows or other projections."""
    m, usual = c.model, FAMILIES[c.family]
    as_usual = all(
        getattr(m, name) == usual.get(name, value)
        for name, value in (("gated", True), ("bias", False), ("tied", False), ("qk_norm", False))
    )
    grouped = m.kv_heads == m.heads or c.family == "llama"
    plain = m.experts is None and m.latent is None and not m.window and m.head_dim * m.heads == m.hidden
    return c.family in EAGER_FAMILIES and as_usual and grouped and plain


def _usual_training(t: LanguageTraining) -> bool:
    return (
        t.precision in PRECISIONS
        and t.optimizer in OPTIMIZERS
        and t.recompute in ("none", "full")
        and not t.recompute_layers
        and not (t.compiled or t.clipping or t.frozen or t.loss_scaling)
        and t.offload == "none"
        and t.loss_share == 1.0
    )


def _plain_layout(s: Layout) -> bool:
    """Data, tensor and pipeline parallelism as torch and Megatron's first version have them."""
    usual = Layout(
        data=s.data, tensor=s.tensor, pipeline=s.pipeline, micro_batches=s.micro_batches,
        bucket_mb=s.bucket_mb, context_kind=s.context_kind, prefetch=s.prefetch,
    )  # fmt: skip
    return s == usual


def _training(t: LanguageTraining) -> Training:
    return Training(
        precision=t.precision,
        optimizer=t.optimizer,
        loss=t.loss,
        fused_optimizer=t.fused_optimizer,
        zero_grad=t.zero_grad,
        dropout=t.dropout,
        attention="eager" if t.attention == "eager" else "flash",
        recompute=t.recompute == "full",
        read_loss=t.read_loss,
        synchronize=t.synchronize,
        master_weights=t.half and t.master_weights,
        cuda_graph=t.cuda_graphs,
        half_state=t.optimizer_state == "half",
    )
