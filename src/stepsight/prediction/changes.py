"""Changes of a job that advise tries.

Of a described one: fields of its description, with the code that makes the same change. Of a captured one:
its recorded operators rewritten, with what was removed or fused and why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from stepsight.capturing.request import CUDNN_9, older
from stepsight.capturing.step import CapturedStep
from stepsight.errors import StepsightError
from stepsight.hardware.spec import GpuSpec, half_type, has_units
from stepsight.kernels.families import PRODUCTS, category
from stepsight.platform.load import USUAL_NODE
from stepsight.prediction.traced.whatif import NO_HOST, one_pass, with_batch, with_bucket, without_host
from stepsight.program.aten.images import DEPTHWISE, DEPTHWISE_CUDNN, lacks_tensor_cores
from stepsight.program.job import COMPUTE, Job, Kernel, Op, RankProgram
from stepsight.program.observation import ObservedJob
from stepsight.program.variants import GROUPED_DIRECT, classify
from stepsight.tables.sharders import SHARDERS
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload
from stepsight.workload.llm.config import PRECISIONS, module_lists
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
AUTOCAST, SDPA = "torch.autocast('cuda', dtype=torch.bfloat16)", "F.scaled_dot_product_attention"
FP16 = "torch.autocast('cuda', dtype=torch.float16) and torch.amp.GradScaler"
COMMON = (
    Change("bf16", ("training.precision=bf16",), AUTOCAST, ROUNDING),
    Change("fp16", ("training.precision=fp16",), FP16, ROUNDING),
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
FLASH = (
    Change("flash attention", ("training.attention=flash",), SDPA),
    Change("bf16 with flash attention", ("training.precision=bf16", "training.attention=flash"),
           f"{AUTOCAST} and {SDPA}", ROUNDING),
    Change("fp16 with flash attention", ("training.precision=fp16", "training.attention=flash"),
           f"{FP16}, and {SDPA}", ROUNDING),
)  # fmt: skip
"""Flash attention computes in half precision only."""
FSDP = Change("FSDP: parameters sharded as well", ("parallel.zero=3",), "fully_shard(model)")
ZERO_1 = Change("ZeRO-1: optimizer state sharded", ("parallel.zero=1",), "--use-distributed-optimizer")
TRANSFORMER = (
    *FLASH,
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
    ZERO_1,
    Change("gradients and optimizer state sharded", ("parallel.zero=2",), "reshard_after_forward=False"),
    FSDP,
    Change("parameters kept after forward", ("parallel.reshard=false",), "reshard_after_forward=False"),
    Change("parameters gathered ahead", ("parallel.prefetch=true",), "--overlap-param-gather"),
    Change("gradients overlapped", ("parallel.overlap_gradients=true",), "--overlap-grad-reduce"),
    Change("sequence parallelism", ("parallel.sequence_parallel=true",), "--sequence-parallel"),
    Change("tensor communication overlapped", ("parallel.async_tensor=true",), "--tp-comm-overlap"),
    Change("fused norms", ("training.fused_norm=true",), "fused RMSNorm and LayerNorm"),
    Change("optimizer on the CPU", ("training.offload=optimizer",), "offload_optimizer: cpu (DeepSpeed)"),
)  # fmt: skip
ADAPTERS_ONLY = "what is trained: low-rank adapters only"
ADAPTERS = (
    Change("LoRA", ("training.recipe=hf", "training.adapters=lora"), "peft.LoraConfig", ADAPTERS_ONLY),
    Change("QLoRA: frozen weights in 4 bits", ("training.recipe=hf", "training.adapters=qlora"),
           "BitsAndBytesConfig(load_in_4bit=True) and peft.LoraConfig", ADAPTERS_ONLY),
)  # fmt: skip
"""Last resorts of language models that fit in no other way."""
VOCABULARY_MULTIPLE = 64


def changes_of(job: Workload, gpu: GpuSpec) -> Iterator[Change]:
    """Changes that may apply to a job on a GPU; those that do not are refused when they are tried."""
    others = {dtype for dtype in PRECISIONS if not has_units(gpu, dtype)}
    if half_type(gpu) != "fp16":
        others.add("fp16")  # as fast as bf16, and gradients need scaling
    for one in _changes_of(job):
        if not any(line.removeprefix("training.precision=") in others for line in one.assignments):
            yield one


def sharded(job: Workload) -> Iterator[Change]:
    """Plain PyTorch with its state sharded, where it does not fit. Gains compare a step of passes with one
    written out by operators."""
    if isinstance(job, LanguageWorkload) and job.eager is not None:
        yield replace(ZERO_1, code="ZeroRedundancyOptimizer(model.parameters(), ...)")
        yield FSDP


def _changes_of(job: Workload) -> Iterator[Change]:
    yield from COMMON
    if isinstance(job, DlrmWorkload):
        yield from _dlrm(job)
    elif job.eager is None:
        fsdp = job.config.framework.shards_gradients and job.config.layout.pipeline == 1
        others = (one for one in LANGUAGE if not (fsdp and one.assignments == ("parallel.zero=1",)))
        yield from (*FLASH, *others)
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
    for name in (one for one in SHARDERS if one != "random"):
        yield Change(f"tables placed by {name}", (f"parallel.sharding={name}",), "stepsight shard --torchrec")


def tables_with_room(job: DlrmWorkload, gpus: int) -> Iterator[Change]:
    """Tables over more of the platform's GPUs, or in half precision."""
    more = (job.ranks << i for i in range(1, gpus.bit_length()) if job.ranks << i <= gpus)
    for ranks in more:
        yield Change(f"tables over {ranks} ranks", (f"parallel.ranks={ranks}",), "more processes")
    half = "EmbeddingConfig(data_type=FP16)"
    yield Change("tables in fp16", ("tables.dtype=fp16",), half, "numerics: rows of tables")


def groups_with_room(ranks: int, per_node: int) -> Iterator[Change]:
    """Sequences and layers cut over the GPUs of a node, with what saves most memory, small groups first."""
    sizes = [1 << i for i in range(per_node.bit_length()) if ranks % (1 << i) == 0]
    for context, tensor in sorted(product(sizes, sizes), key=lambda pair: (pair[0] * pair[1], pair)):
        if 1 < context * tensor <= ranks:
            parts = {"context": context, "tensor": tensor}
            used = {name: size for name, size in parts.items() if size > 1}
            lines = tuple(f"parallel.{name}={size}" for name, size in used.items())
            name = " and ".join(f"{name} parallel {size}" for name, size in used.items())
            more = ("parallel.zero=3", "training.recompute=full")
            yield Change(f"{name}, sharded, full recomputation", (*lines, *more), "parallel sizes")


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
    if c.model.experts:
        for size in dict.fromkeys((USUAL_NODE, 2 * s.expert, s.expert // 2)):
            if size >= 1 and size != s.expert and c.model.experts.count % size == 0:
                yield Change(
                    f"experts over {size} ranks", (f"parallel.expert={size}",), "expert-parallel size"
                )
    if s.pipeline > 1 and s.virtual_stages == 1:
        yield Change("interleaved pipeline", ("parallel.virtual_stages=2",), "virtual pipeline stages")
    if not c.framework.selects_products and c.training.recompute == "none":
        yield from _modules(c.model)
    yield from _padding(c.model.vocab)


def _modules(model: LanguageModel) -> Iterator[Change]:
    """Megatron's selective recomputation."""
    for modules in module_lists(model):
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


POINTWISE = ("elementwise", "dropout", "masked_fill", "masked_fill_backward", "fill")
"""Families that a compiler joins where one reads what the other wrote."""
MOST_LISTED = 4
OPTIMIZER = "optimizer"
ACCUMULATE = "AccumulateGrad"
NORMS = ("batch_norm", "layer_norm", "rms_norm")
FEWEST_FUSED = 4
"""Kernels of an update from which on fusing them is worth a line."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A captured step after a change. ``done`` lists what was removed, fused or cast; ``work`` is how much
    more a step does."""

    name: str
    code: str
    step: CapturedStep
    done: str
    alters: str = ""
    work: float = 1.0


def rewrites_of(step: CapturedStep, gpu: GpuSpec) -> Iterator[Rewrite]:
    """Every rewrite that changes the step; products get types that the GPU has units for."""
    half = half_type(gpu)
    tf32 = (_tf32,) if has_units(gpu, "tf32") else ()
    for make in (*_REWRITES, *tf32, *((_HALF[half],) if half in _HALF else ())):
        try:
            made = make(step)
        except StepsightError:
            continue
        if made is not None and made.step.job != step.job:
            yield made


def _no_waits(step: CapturedStep) -> Rewrite | None:
    """Operators that make the host wait for the device: reads of values, copies that are not pinned."""
    names = Counter(op.name for p in step.job.programs for op in p.ops if op.blocks_host)
    if not names:
        return None
    job = _each(step.job, lambda op: replace(op, blocks_host=False) if op.blocks_host else op)
    code = "no .item(), .cpu() or print of tensors in a step; pin_memory=True and non_blocking=True"
    return Rewrite(
        "no waits of the host for the GPU", code, replace(step, job=job), f"waits of {_listed(names)}"
    )


def _cuda_graph(step: CapturedStep) -> Rewrite | None:
    if any(op.blocks_host for p in step.job.programs for op in p.ops):
        return None  # a step that reads values cannot be captured as a graph
    done = "host times of all operators; the kernels stay"
    code = "torch.compile(mode='reduce-overhead') or torch.cuda.make_graphed_callables"
    return Rewrite("CUDA graph", code, replace(step, job=without_host(ObservedJob(step.job)).job), done)


def _compiled(step: CapturedStep) -> Rewrite | None:
    """Neighbouring element-wise kernels become one, and join the norm before them, as a compiler emits them.

    Accumulation of gradients and the update stay: the compiler does not see them.
    """
    fused: Counter[str] = Counter()
    programs = tuple(replace(p, ops=_joined(p, fused)) for p in step.job.programs)
    if not fused:
        return None
    job = replace(step.job, programs=programs)
    done = (
        f"{fused.total():,} element-wise kernels joined with their neighbours: {_listed(fused)}; a lower"
        " bound: capture the compiled script, which fuses by what each kernel reads and writes"
    )
    return Rewrite("torch.compile", "model = torch.compile(model)", replace(step, job=job), done)


def _joined(program: RankProgram, fused: Counter[str]) -> tuple[Op, ...]:
    """An operator joins the one before it where both run over the same elements and nothing is between."""
    ops = list(program.ops)
    first = -1
    for i, op in enumerate(ops):
        if _is_alone(op) and op.kernels[-1].family in NORMS:
            first = i
            continue
        if not _is_pointwise(op):
            first = first if _is_empty(op) else -1
            continue
        if first >= 0 and _elements(ops[first]) == _elements(op):
            *before, last = ops[first].kernels
            if last.family not in NORMS:  # a norm applies what follows it before it writes
                ops[first] = replace(ops[first], kernels=(*before, one_pass(last, op.kernels[0])))
            ops[i] = replace(op, kernels=(), overhead_us=NO_HOST)
            fused[op.name] += 1
        else:
            first = i
    return tuple(ops)


def _is_alone(op: Op) -> bool:
    return bool(op.kernels) and not op.collective and not op.waits and not op.blocks_host


def _is_empty(op: Op) -> bool:
    """Launches nothing that a fused kernel would have to wait for; counters of a few bytes do not count."""
    small = all(k.dim("elements", 2.0) <= 1 for k in op.kernels)
    return small and not op.collective and not op.waits and not op.blocks_host


def _is_pointwise(op: Op) -> bool:
    if not _is_alone(op) or len(op.kernels) != 1 or op.phase == OPTIMIZER or ACCUMULATE in op.name:
        return False
    kernel = op.kernels[0]
    large = kernel.dim("elements", 0.0) > 1
    return large and kernel.family in POINTWISE and kernel.stream == COMPUTE and not kernel.parts


def _elements(op: Op) -> float:
    kernel = op.kernels[-1]
    return kernel.dim("elements", 0.0) or kernel.dim("rows", 0.0) * kernel.dim("cols", 0.0)


def _channels_last(step: CapturedStep) -> Rewrite | None:
    """Convolutions on tensor cores read images by pixel: without copies from and to planes of channels, and
    with the kernels that the step's cuDNN has for groups by pixel."""
    old = older(step.torch, *CUDNN_9)
    count = 0

    def changed(op: Op) -> Op:
        nonlocal count
        count += sum(k.dim("reordered", 0.0) > 0 for k in op.kernels)
        return replace(op, kernels=tuple(_by_pixel(k, old=old) for k in op.kernels))

    job = _each(step.job, changed)
    code = "model.to(memory_format=torch.channels_last), and the images as well"
    done = f"copies around {count:,} convolutions"
    return Rewrite("channels_last", code, replace(step, job=job), done) if count else None


def _by_pixel(kernel: Kernel, *, old: bool) -> Kernel:
    if kernel.operator == DEPTHWISE:  # torch's own kernels are for planes
        return replace(kernel, operator=DEPTHWISE_CUDNN, kind=classify(kernel.family, DEPTHWISE_CUDNN))
    if not kernel.dim("reordered", 0.0):
        return kernel
    made = replace(kernel, dims=tuple((n, 0.0 if n == "reordered" else v) for n, v in kernel.dims))
    sizes = [int(kernel.dim(name, 1.0)) for name in ("c_in", "c_out", "groups", "stride")]
    if not old or kernel.family == "conv" or sizes[2] == 1 or not lacks_tensor_cores(*sizes):
        return made
    return replace(made, operator=GROUPED_DIRECT, kind=classify(kernel.family, GROUPED_DIRECT))


def _fused_optimizer(step: CapturedStep) -> Rewrite | None:
    """All kernels of the update become one pass over parameters, gradients and optimizer state."""
    held = step.fullest.parts_bytes if step.fullest else {}
    parameters, state = held.get("parameters", 0.0), held.get("optimizer_state", 0.0)
    updates = [op for op in step.job.programs[0].ops if _updates(op)]
    kernels = sum(len(op.kernels) for op in updates)
    if parameters <= 0 or kernels < FEWEST_FUSED:
        return None
    one = Kernel.of(
        "optimizer", operator="fused", elements=parameters / 4, read_bytes=2 * parameters + state,
        write_bytes=parameters + state, tensors=1.0,
    )  # fmt: skip

    def changed(program: RankProgram) -> RankProgram:
        ops, placed = [], False
        for op in program.ops:
            if _updates(op):
                kernels = () if placed else (one,)
                op = replace(op, kernels=kernels, overhead_us=NO_HOST if placed else op.overhead_us)
                placed = True
            ops.append(op)
        return replace(program, ops=tuple(ops))

    job = replace(step.job, programs=tuple(changed(p) for p in step.job.programs))
    done = f"{kernels:,} kernels of the update become one"
    return Rewrite("fused optimizer", "torch.optim.AdamW(..., fused=True)", replace(step, job=job), done)


def _updates(op: Op) -> bool:
    """Part of the optimizer step; zeroing gradients is not."""
    named = "zero_grad" not in op.name and op.phase == OPTIMIZER
    return named and bool(op.kernels) and op.collective is None


def _tf32(step: CapturedStep) -> Rewrite | None:
    job, count = _with_products(step.job, "tf32", casts=False)
    code = "torch.set_float32_matmul_precision('high')"
    done = f"{count:,} products in fp32 become tf32"
    return Rewrite("tf32", code, replace(step, job=job), done, ROUNDING) if count else None


def _bf16(step: CapturedStep) -> Rewrite | None:
    return _autocast(step, "bf16", "with torch.autocast('cuda', dtype=torch.bfloat16): ...")


def _fp16(step: CapturedStep) -> Rewrite | None:
    """Where a GPU has fp16 only, what the script computes in bf16 as well."""
    job, count = _with_products(step.job, "fp16", casts=False, only="bf16")
    if not count:
        return _autocast(step, "fp16", FP16)
    done = f"{count:,} products in bf16 become fp16"
    return Rewrite("fp16 autocast", FP16, replace(step, job=job), done, ROUNDING)


def _autocast(step: CapturedStep, dtype: str, code: str) -> Rewrite | None:
    job, count = _with_products(step.job, dtype, casts=True)
    done = f"{count:,} products in fp32 become {dtype}, each with casts of its operands; other kernels stay"
    made = Rewrite(f"{dtype} autocast", code, replace(step, job=job), done, ROUNDING)
    return made if count else None


_HALF = {"bf16": _bf16, "fp16": _fp16}


def _with_products(job: Job, dtype: str, *, casts: bool, only: str = "fp32") -> tuple[Job, int]:
    """The job with its products of ``only`` in another type, and how many there are in one program."""
    count = 0

    def changed(op: Op) -> Op:
        nonlocal count
        kernels: list[Kernel] = []
        for kernel in op.kernels:
            if category(kernel.family) in PRODUCTS and kernel.dtype == only:
                count += 1
                kernels += [_cast(kernel, dtype)] if casts and kernel.family == "gemm" else []
                kernel = replace(kernel, dtype=dtype)
            kernels.append(kernel)
        return replace(op, kernels=tuple(kernels))

    return _each(job, changed), count


def _cast(kernel: Kernel, dtype: str) -> Kernel:
    """Both operands of a product, read in fp32 and written in the lower type."""
    elements = kernel.dim("batch") * kernel.dim("k") * (kernel.dim("m") + kernel.dim("n"))
    return Kernel.of(
        "elementwise", dtype, operator="cast", stream=kernel.stream, elements=elements,
        read_bytes=4 * elements, write_bytes=2 * elements,
    )  # fmt: skip


def _buckets(step: CapturedStep) -> Rewrite | None:
    sizes = [
        op.collective.bytes for p in step.job.programs for op in p.ops
        if op.collective and op.collective.kind == "all_reduce" and op.phase == "backward"
    ]  # fmt: skip
    if len(sizes) < 3:
        return None
    code = "DistributedDataParallel(..., bucket_cap_mb=100)"
    job = with_bucket(ObservedJob(step.job), 100.0).job
    return Rewrite("buckets of 100 MB", code, replace(step, job=job), f"{len(sizes)} all_reduces joined")


def _twice(step: CapturedStep) -> Rewrite | None:
    done = "sizes that follow the batch doubled"
    made = _with_batch(step, 2.0)
    return Rewrite("twice the batch", "batch size", made, done, "the batch: learning rate goes with it", 2.0)


def smaller_batches(step: CapturedStep) -> Iterator[Rewrite]:
    """Parts of the batch, the largest first; with as many micro-batches per step the batch is the same."""
    for parts in (2, 4, 8, 16):
        code = f"micro-batches of 1/{parts} of the batch, gradients accumulated over {parts}"
        done = f"sizes that follow the batch divided by {parts}"
        yield Rewrite(f"1/{parts} of the batch", code, _with_batch(step, 1 / parts), done, "", 1 / parts)


def _with_batch(step: CapturedStep, factor: float) -> CapturedStep:
    memory = tuple(use.of_batch(factor) for use in step.memory)
    return replace(step, job=with_batch(ObservedJob(step.job), factor).job, memory=memory)


_REWRITES = (
    _no_waits, _cuda_graph, _compiled, _channels_last, _fused_optimizer, _buckets, _twice,
)  # fmt: skip


def _each(job: Job, change: Callable[[Op], Op]) -> Job:
    programs = tuple(replace(p, ops=tuple(change(op) for op in p.ops)) for p in job.programs)
    return replace(job, programs=programs)


def _listed(names: Counter[str]) -> str:
    shown = [f"{name} ×{n}" if n > 1 else name for name, n in names.most_common(MOST_LISTED)]
    more = len(names) - MOST_LISTED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
