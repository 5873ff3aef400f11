"""A configuration as the flags of the frameworks that run it, ready to paste."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepsight.errors import StepsightError
from stepsight.tune.evaluate import settled
from stepsight.tune.trial import Row
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload


@dataclass(frozen=True, slots=True)
class Flags:
    """One framework's way to say it; ``lacks`` says what it does not have, and what is written instead."""

    framework: str
    text: str
    lacks: str = ""


def flags(document: Mapping[str, Any], row: Row, where: str = "workload") -> list[Flags]:
    """Flags of torchtitan, Megatron-LM, and where sequences stay whole of nanotron and DeepSpeed; none for a
    DLRM. What a framework lacks is written as what it has that holds no more memory, if there is such."""
    try:
        workload = parse_workload(settled(document, row.settings, where), where)
    except StepsightError:
        return []
    if not isinstance(workload, LanguageWorkload):
        return []
    c = workload.config
    written = [_torchtitan(c), _megatron(c)]
    return written if c.layout.context > 1 else [*written, _nanotron(c), _deepspeed(c)]


def _torchtitan(c: LanguageConfig) -> Flags:
    """torchtitan's command line (``[parallelism]`` and ``[training]`` of its configuration)."""
    s = c.layout
    shard = s.data if s.zero else 1
    replicate = s.data // shard
    parts = [
        f"--training.global_batch_size {c.batch_per_rank * s.data}",
        f"--training.local_batch_size {c.micro_batch if s.pipeline == 1 else c.batch_per_rank}",
        f"--training.seq_len {c.sequence}",
        f"--parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.data_parallel_shard_degree {shard}",
        f"--parallelism.tensor_parallel_degree {s.tensor}",
        f"--parallelism.pipeline_parallel_degree {s.pipeline}",
        f"--parallelism.context_parallel_degree {s.context}",
    ]
    if s.expert > 1:
        parts.append(f"--parallelism.expert_parallel_degree {s.expert}")
    if s.pipeline > 1:
        name = "Interleaved1F1B" if s.virtual_stages > 1 else "1F1B"
        parts += [
            f"--parallelism.pipeline_parallel_schedule {name}",
            f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}",
        ]
    if s.zero in (1, 2):  # parameters stay gathered from the forward to the backward pass
        parts.append("--parallelism.fsdp_reshard_after_forward never")
    parts.append(f"--activation_checkpoint.mode {c.training.recompute}")
    lacking = ["no ZeRO 1, written with gradients sharded, too"] if s.zero == 1 else []
    lacking += ["no exchange of heads for parts of the sequence"] if s.context_kind == "all_to_all" else []
    return Flags("torchtitan", " ".join(parts), "; ".join(lacking))


def _megatron(c: LanguageConfig) -> Flags:
    s, t = c.layout, c.training
    parts = [
        f"--tensor-model-parallel-size {s.tensor}",
        f"--pipeline-model-parallel-size {s.pipeline}",
        f"--context-parallel-size {s.context}",
        f"--micro-batch-size {c.micro_batch}",
        f"--global-batch-size {c.batch_per_rank * s.data}",
        f"--seq-length {c.sequence}",
    ]
    if s.context > 1 and s.context_kind != "ring":
        parts.append(f"--cp-comm-type {'a2a' if s.context_kind == 'all_to_all' else 'all_gather'}")
    if s.expert > 1:
        parts.append(f"--expert-model-parallel-size {s.expert}")
    if s.virtual_stages > 1:
        per_stage = c.model.layers // (s.pipeline * s.virtual_stages)
        parts.append(f"--num-layers-per-virtual-pipeline-stage {per_stage}")
    if s.sequence_parallel:
        parts.append("--sequence-parallel")
    if s.zero in (1, 2):
        parts.append("--use-distributed-optimizer")
    if s.zero == 3:  # what --use-torch-fsdp2 insists on
        parts.append("--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist")
        parts += [] if c.model.tied else ["--untie-embeddings-and-output-weights"]
    elif s.overlap_gradients and s.data > 1:
        parts.append("--overlap-grad-reduce")
    if t.recompute == "full":
        parts.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    elif t.recompute == "selective":
        parts.append("--recompute-granularity selective")
    parts += [f"--{t.precision}"] if t.precision in ("bf16", "fp16") else []
    parts += ["--bf16 --fp8-format hybrid"] if t.precision == "fp8" else []
    return Flags("Megatron-LM", " ".join(parts), "no ZeRO 2, written with ZeRO 1" if s.zero == 2 else "")


def _nanotron(c: LanguageConfig) -> Flags:
    """nanotron's YAML, in one line each."""
    s = c.layout
    mode = "REDUCE_SCATTER" if s.sequence_parallel else "ALL_REDUCE"
    lines = [
        "parallelism:",
        f"  dp: {s.data}",
        f"  tp: {s.tensor}",
        f"  pp: {s.pipeline}",
        "  pp_engine: 1f1b",
        f"  tp_mode: {mode}",
        f"  tp_linear_async_communication: {str(s.sequence_parallel).lower()}",
        f"  recompute_layer: {str(c.training.recompute == 'full').lower()}",
        "tokens:",
        f"  micro_batch_size: {c.micro_batch}",
        f"  batch_accumulation_per_replica: {s.micro_batches}",
        f"  sequence_length: {c.sequence}",
        "optimizer:",
        f"  zero_stage: {min(s.zero, 1)}",
    ]
    lacking = [
        name
        for name, on in (
            ("no ZeRO 2 and 3, written with ZeRO 1", s.zero > 1),
            ("no interleaved stages", s.virtual_stages > 1),
            ("no context parallelism", s.context > 1),
            ("no selective recomputation", c.training.recompute == "selective"),
        )
        if on
    ]  # fmt: skip
    return Flags("nanotron", "\n".join(lines), "; ".join(lacking))


def _deepspeed(c: LanguageConfig) -> Flags:
    """DeepSpeed's JSON; tensor and pipeline parallelism are the model's own business there."""
    s = c.layout
    half = c.training.dtype if c.training.half else ""
    precision = f', "{half}": {{"enabled": true}}' if half else ""
    content = (
        f'{{"train_batch_size": {c.batch_per_rank * s.data}, '
        f'"train_micro_batch_size_per_gpu": {c.micro_batch}, '
        f'"gradient_accumulation_steps": {s.micro_batches}, '
        f'"zero_optimization": {{"stage": {s.zero}, "overlap_comm": {str(s.overlap_gradients).lower()}}}'
        f"{precision}}}"
    )
    lacks = "no tensor and pipeline parallelism (use Megatron-DeepSpeed)" if s.tensor * s.pipeline > 1 else ""
    return Flags("DeepSpeed", content, lacks)
