"""What the operator-by-operator emission of a transformer reads of its description."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsight.workload.llm.config import LanguageConfig, LanguageTraining
from stepsight.workload.llm.layout import Layout
from stepsight.workload.llm.model import FAMILIES
from stepsight.workload.operators.optimizers import OPTIMIZERS
from stepsight.workload.training import PRECISIONS, Training

EAGER_FAMILIES = ("bert", "gpt2", "xlnet", "gpt", "opt", "llama")


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Model, batch and number of replicas of one transformer.

    ``kv_heads`` below ``heads`` is grouped-query attention (Llama). ``head``: lm ends in the
    vocabulary, none stops at the last hidden state.
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
    bucket_mb: float = 25.0
    source: str = field(default="", compare=False)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def eager_step(c: LanguageConfig) -> TransformerConfig | None:
    """The description as the emission reads it; None where passes of condensed kernels stand for the step: in
    other frameworks, and for what no family here writes out."""
    m, s = c.model, c.layout
    if c.framework.name != "eager" or not _usual_model(c) or not _usual_training(c.training):
        return None
    if s != Layout(data=s.data, bucket_mb=s.bucket_mb, context_kind=s.context_kind, prefetch=s.prefetch):
        return None
    return TransformerConfig(
        name=c.name, family=c.family, layers=m.layers, hidden=m.hidden, heads=m.heads, ffn=m.ffn,
        vocab=m.vocab, sequence=c.sequence, batch_per_rank=c.batch_per_rank, training=_training(c.training),
        kv_heads=m.kv_heads, head=m.head, data=s.data, bucket_mb=s.bucket_mb, source=c.source,
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
