"""A transformer's training step in plain PyTorch: replicas that reduce their gradients in buckets."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.program.job import Call, Job, Kernel, Op
from stepsight.workload.llm.config import LanguageConfig, LanguageTraining
from stepsight.workload.llm.eager import families, xlnet
from stepsight.workload.llm.layout import Layout
from stepsight.workload.llm.model import FAMILIES
from stepsight.workload.memory import MemoryReport, peak_memory
from stepsight.workload.operators.optimizers import OPTIMIZERS
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.step import train_step
from stepsight.workload.training import PRECISIONS, Training

MODELS: dict[str, Callable[[Tape, LanguageConfig], families.Forward]] = {
    **dict.fromkeys(families.FAMILIES, families.decoder),
    "xlnet": xlnet.model,
}


def eager_training(c: LanguageConfig) -> Training | None:
    """The description's training as plain PyTorch has it; None where passes of condensed kernels stand for
    the step: in other frameworks, and for what no family here writes out."""
    s, t = c.layout, c.training
    if c.framework.name != "eager" or not _usual_model(c) or not _usual_training(t):
        return None
    if s != Layout(data=s.data, bucket_mb=s.bucket_mb, context_kind=s.context_kind, prefetch=s.prefetch):
        return None
    return Training(
        precision=t.precision, optimizer=t.optimizer, loss=t.loss, fused_optimizer=t.fused_optimizer,
        zero_grad=t.zero_grad, dropout=t.dropout, attention="eager" if t.attention == "eager" else "flash",
        recompute=t.recompute == "full", read_loss=t.read_loss, synchronize=t.synchronize,
        master_weights=t.half and t.master_weights, cuda_graph=t.cuda_graphs,
        half_state=t.optimizer_state == "half",
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
    return c.family in MODELS and as_usual and grouped and plain


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


def build(c: LanguageConfig, training: Training, device: str = "cuda") -> Job:
    """Every rank runs the same program."""
    return Job.replicated(_tape(c, training, device).program(c.name), c.ranks)


def memory(c: LanguageConfig, training: Training) -> MemoryReport:
    """What each rank's device must hold at the peak."""
    return MemoryReport((peak_memory(_tape(c, training, "cuda"), training, c.ranks),) * c.ranks)


def _tape(c: LanguageConfig, training: Training, device: str) -> Tape:
    def model(tape: Tape) -> families.Forward:
        forward = MODELS[c.family](tape, c)

        def run() -> Tensor:
            _copy_inputs(tape, c)
            return forward()

        return run

    return train_step(training, device, c.ranks, c.layout.bucket_mb, model)


def _copy_inputs(tape: Tape, c: LanguageConfig) -> None:
    """Token ids and labels go to the device."""
    if tape.device != "cuda":
        return
    shape = (c.batch_per_rank, c.sequence)
    kernel = Kernel.of("copy_h2d", "int64", bytes=8 * c.batch_per_rank * c.sequence)
    op = Op("aten::to", (kernel,), label="inputs", shapes=(shape,), calls=(Call("aten::_to_copy", (shape,)),))
    tape.ops.extend([op] * (1 if c.training.loss == "none" else 2))
