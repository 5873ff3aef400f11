"""Changes of a described job: fields of its description, with the code that makes the same change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from stepsight.tables.sharders import SHARDERS
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload
from stepsight.workload.llm.model import LanguageModel
from stepsight.workload.llm.workload import LanguageWorkload


@dataclass(frozen=True, slots=True)
class Change:
    """``assignments`` to the description; ``code`` is the same change in a training script. ``alters``: what
    else than the time it changes, if the trained model may come out differently."""

    name: str
    assignments: tuple[str, ...]
    code: str = ""
    alters: str = ""


ROUNDING = "numerics: rounding of GEMMs"
BATCH = "the batch: learning rate and schedule go with it"
COMMON = (
    Change("bf16", ("training.precision=bf16",), "torch.autocast('cuda', dtype=torch.bfloat16)", ROUNDING),
    Change("tf32", ("training.precision=tf32",), "torch.set_float32_matmul_precision('high')", ROUNDING),
    Change("fused optimizer", ("training.fused_optimizer=true",), "torch.optim.AdamW(..., fused=True)"),
    Change("CUDA graph", ("training.cuda_graph=true",), "torch.compile(mode='reduce-overhead')"),
    Change("no read of the loss in each step", ("training.read_loss=false",), "loss.item() every 100th step"),
    Change("no synchronisation in each step", ("training.synchronize=false",), "no torch.cuda.synchronize()"),
    Change("buckets of 50 MB", ("parallel.bucket_mb=50",), "DistributedDataParallel(..., bucket_cap_mb=50)"),
    Change(
        "buckets of 100 MB", ("parallel.bucket_mb=100",), "DistributedDataParallel(..., bucket_cap_mb=100)"
    ),
    Change("buckets of 10 MB", ("parallel.bucket_mb=10",), "DistributedDataParallel(..., bucket_cap_mb=10)"),
)
TRANSFORMER = (
    Change("flash attention", ("training.attention=flash",), "F.scaled_dot_product_attention"),
    Change("no recomputation", ("training.recompute=false",), "no torch.utils.checkpoint"),
    Change("recomputation", ("training.recompute=true",), "torch.utils.checkpoint around each layer"),
)
LANGUAGE = (
    Change("FlashAttention-3", ("training.attention=flash3",), "flash_attn_interface (Hopper)"),
    Change("cuDNN attention", ("training.attention=cudnn",), "sdpa_kernel(SDPBackend.CUDNN_ATTENTION)"),
    Change("fp8 GEMMs", ("training.precision=fp8",), "torchao float8 or Transformer Engine", ROUNDING),
    Change("torch.compile", ("training.compile=true",), "model = torch.compile(model)"),
    Change("no recomputation", ("training.recompute=none",), "no activation checkpointing"),
    Change("selective recomputation", ("training.recompute=selective",), "--recompute-granularity selective"),
    Change("full recomputation", ("training.recompute=full",), "--recompute-granularity full"),
    Change("blocks of the allocator joined", ("training.expandable_segments=true",),
           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    Change("DDP: no sharding", ("parallel.zero=0",), "DistributedDataParallel(model)"),
    Change("ZeRO-1: optimizer state sharded", ("parallel.zero=1",), "--use-distributed-optimizer"),
    Change("gradients and optimizer state sharded", ("parallel.zero=2",), "reshard_after_forward=False"),
    Change("FSDP: parameters sharded as well", ("parallel.zero=3",), "fully_shard(model)"),
    Change("parameters kept after forward", ("parallel.reshard=false",), "reshard_after_forward=False"),
    Change("parameters gathered ahead", ("parallel.prefetch=true",), "--overlap-param-gather"),
    Change("gradients overlapped", ("parallel.overlap_gradients=true",), "--overlap-grad-reduce"),
    Change("sequence parallelism", ("parallel.sequence_parallel=true",), "--sequence-parallel"),
    Change("tensor communication overlapped", ("parallel.async_tensor=true",), "--tp-comm-overlap"),
    Change("fused norms", ("training.fused_norm=true",), "fused RMSNorm and LayerNorm"),
    Change("optimizer on the CPU", ("training.offload=optimizer",), "offload_optimizer: cpu (DeepSpeed)"),
)  # fmt: skip
VOCABULARY_MULTIPLE = 64


def changes_of(job: Workload) -> Iterator[Change]:
    """Changes that may apply to a job; those that do not are refused when they are tried."""
    yield from COMMON
    if isinstance(job, DlrmWorkload):
        yield from _dlrm(job)
    elif job.eager is None:
        yield from (TRANSFORMER[0], *LANGUAGE)
        yield from _language(job)
    else:
        yield from TRANSFORMER
        batch = job.config.batch_per_rank
        yield Change("twice the batch", (f"batch_per_rank={2 * batch}",), "batch size", BATCH)
        yield Change("half the batch", (f"batch_per_rank={max(batch // 2, 1)}",), "batch size", BATCH)
        yield from _padding(job.config.model.vocab)


def _dlrm(job: DlrmWorkload) -> Iterator[Change]:
    batch = job.config.batch
    yield Change("twice the batch", (f"batch={2 * batch}",), "batch size", BATCH)
    for name in SHARDERS:
        yield Change(f"tables placed by {name}", (f"parallel.sharding={name}",), "stepsight shard --torchrec")


def _language(job: LanguageWorkload) -> Iterator[Change]:
    c = job.config
    micro, s = c.micro_batch, c.layout
    for size in dict.fromkeys((2 * micro, micro // 2, 1)):
        if size >= 1 and c.batch_per_rank % size == 0 and size != micro:
            yield Change(f"micro-batches of {size}", (f"parallel.micro_batch={size}",), "micro batch size")
    for tensor in (s.tensor * 2, s.tensor // 2):
        if tensor >= 1 and tensor != s.tensor:
            yield Change(f"tensor parallel {tensor}", (f"parallel.tensor={tensor}",), "tensor-parallel size")
    for stages in (s.pipeline * 2, s.pipeline // 2):
        if stages >= 1 and stages != s.pipeline:
            yield Change(f"pipeline of {stages}", (f"parallel.pipeline={stages}",), "pipeline-parallel size")
    if s.pipeline > 1 and s.virtual_stages == 1:
        yield Change("interleaved pipeline", ("parallel.virtual_stages=2",), "virtual pipeline stages")
    if not c.framework.selects_products and c.training.recompute == "none":
        yield from _modules(c.model)
    yield from _padding(c.model.vocab)


def _modules(model: LanguageModel) -> Iterator[Change]:
    """Megatron's selective recomputation, cheapest first: activation functions, norms too, whole MLPs."""
    cheap = ["moe_act" if model.experts else "mlp_act"]
    lists = [cheap, [*cheap, "layernorm"], ["mlp"]]
    if model.latent:
        lists.insert(2, [*cheap, "layernorm", "mla_up_proj"])
    for modules in lists:
        yield Change(
            f"{' and '.join(modules)} run again",
            (f"training.recompute={json.dumps(modules, separators=(',', ':'))}",),
            f"--recompute-granularity selective --recompute-modules {' '.join(modules)}",
        )


def _padding(vocab: int) -> Iterator[Change]:
    padded = -(-vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    if padded != vocab:
        yield Change(
            f"vocabulary padded from {vocab:,} to {padded:,}", (f"vocab={padded}",), f"vocab_size={padded}"
        )
