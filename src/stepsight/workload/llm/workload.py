"""A language model that can be turned into a job, with what its users count in: tokens, FLOPs, stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec
from stepsight.program.job import Job
from stepsight.program.setup import Setup
from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import (
    PLAIN_FIELDS,
    LanguageConfig,
    read_language,
    usual_framework,
    with_choices_of,
)
from stepsight.workload.llm.eager import build as eager_build
from stepsight.workload.llm.layer import recomputed_flops
from stepsight.workload.llm.layout import Layout
from stepsight.workload.llm.memory import language_memory
from stepsight.workload.llm.model import Experts
from stepsight.workload.memory import MemoryReport
from stepsight.workload.training import Described, Training

NAMED_AXES = ("data", "tensor", "pipeline", "context", "expert")
"""Axes of parallelism as answers name them."""
SCHEDULES = {"afab": "all-forward-all-backward", "zero_bubble": "zero-bubble"}
"""Pipeline schedules in words, where their names are none."""
ADAPTER_NAMES = {"lora": "LoRA", "qlora": "QLoRA", "dora": "DoRA"}
GENERAL = ("megatron", "torchtitan")
"""Frameworks that are assumed where a description speaks for none."""
SAFE = 0.92
"""Of the usable memory, what a micro-batch that nobody stated may fill: memory is known to ±8 %."""


def read_transformer(document: Mapping[str, Any], where: str) -> LanguageWorkload:
    """A transformer from the content of its file."""
    found = LanguageWorkload(read_language(document, where), unnamed=_without_stack(document))
    c, training = found.config, document.get("training", {})

    def refuse(field: str, problem: str, fix: str) -> None:
        raise InputError(f"{where}: {field}", problem, fix)

    if c.model.head == "none" and c.training.loss != "none":
        refuse("head", "a model without head has no loss", 'set [training] loss = "none"')
    if c.family == "xlnet" and c.training.recompute != "none":
        refuse("[training]: recompute", "has no effect: XLNet keeps its activations", "leave it out")
    if c.family == "xlnet" and c.training.attention != "eager":
        refuse("[training]: attention", "has no effect: XLNet has no fused kernel", "leave it out")
    if found.eager is not None:
        return found
    for key, (anyway, words) in PLAIN_FIELDS.items():
        if training.get(key, anyway) != anyway:
            problem = f"has no effect outside plain data-parallel PyTorch: in this step {words}"
            refuse(f"[training]: {key}", problem, f"remove {key}")
    if c.family == "xlnet" or c.model.head == "none":
        field = "family" if c.family == "xlnet" else "head"
        refuse(field, "is of plain data-parallel PyTorch only", "leave other settings out")
    return found


def _without_stack(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The description, if neither its words nor its fields speak for one training stack."""
    named = {"recipe", "framework"} & document.get("training", {}).keys()
    return None if named or usual_framework(document) not in GENERAL else document


@dataclass(frozen=True, repr=False)
class LanguageWorkload(Described[LanguageConfig]):
    """A language model and how it is trained.

    ``open_layout`` is the content of a file that leaves to the platform how experts are spread; ``unnamed``
    that of one which leaves the training stack open: another recipe than the usual one may be put in
    (`stepsight.workload.files.with_recipe`).
    """

    open_layout: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    unnamed: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    sized_by: ClassVar[str] = "parallel.data, tensor or pipeline"

    def setup(self) -> Setup:
        """Batch, sequence, precision and the axes of parallelism."""
        c, s = self.config, self.config.layout
        axes = [(name, int(getattr(s, name))) for name in NAMED_AXES if int(getattr(s, name, 1)) > 1]
        images = c.model.patches > 0
        by_default = " by default" if "recompute" in c.left_open else ""
        details = ["this layout by default (stepsight tune searches)"] if "layout" in c.left_open else []
        details += _sharing(s, by_default)
        details += _schedule(c)
        details += _recomputation(c)
        details.append(f"{c.training.attention} attention")
        details += [words for on, words in _switches(c) if on]
        return Setup(
            samples=c.tokens_per_step / c.sequence,
            default_batch=not c.states_batch,
            tokens=None if images else c.tokens_per_step,
            sequence=None if images else c.sequence,
            sample_kind="images" if images else "samples",
            precision=c.training.precision,
            parallel=tuple(axes),
            details=tuple(details),
            at_once=float(c.micro_batch),
            product_dtype=c.training.product_dtype,
            framework=c.framework.name,
            recipe=c.recipe,
            default_recipe=self.unnamed is not None,
            differs=c.differs,
            zero=s.zero,
            recompute="partial" if c.training.recompute_layers else c.training.recompute,
            model_flops=c.tokens_per_step * c.model.flops_per_token(c.attended, frozen=c.training.frozen),
            recomputed_flops=recomputed_flops(c),
        )

    def on(self, gpu: GpuSpec) -> LanguageWorkload:
        """The workload with what its description leaves to the GPU: half precision, the attention kernel,
        the largest micro-batch that fits, and full recomputation where nothing else does."""
        c = with_choices_of(self.config, gpu)
        tried = [c]
        if "micro_batch" in c.left_open:
            splits = _divisors(c.batch_per_rank)
            tried = [replace(c, layout=replace(c.layout, micro_batches=n)) for n in splits]
        if "recompute" in c.left_open and c.layout.zero == 3:
            tried += [replace(one, training=replace(c.training, recompute="full")) for one in tried]
        if len(tried) == 1:
            return replace(self, config=c)
        found = next((one for one in tried if replace(self, config=one).fits(gpu)), None)
        return replace(self, config=found or replace(tried[-1], left_open=c.left_open - {"micro_batch"}))

    def fits(self, gpu: GpuSpec) -> bool:
        """Whether it fits with room for what memory is known to."""
        return self.memory().peak_bytes <= SAFE * gpu.usable_bytes

    @property
    def eager(self) -> Training | None:
        """The training of a step that is written out operator by operator; None where passes stand for it."""
        return eager_build.eager_training(self.config)

    def job(self, device: str = "cuda", blocks: int | None = None) -> Job:
        """All ranks' operators in plain PyTorch, else one program for each stage of the pipeline."""
        eager = self.eager
        return build(self.config, blocks) if eager is None else eager_build.build(self.config, eager, device)

    def memory(self) -> MemoryReport:
        """What each rank's device must hold at the peak."""
        eager = self.eager
        return language_memory(self.config) if eager is None else eager_build.memory(self.config, eager)


def _divisors(n: int) -> list[int]:
    """What divides ``n``, in order."""
    small = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def _sharing(s: Layout, by_default: str) -> list[str]:
    """What replicas share out, and when they exchange it."""
    if not s.zero:
        return []
    groups = [f"sharded over groups of {s.shard_group}"] if 0 < s.shard_group < s.data * s.context else []
    if s.zero == 3:
        kept = [] if s.reshard else ["parameters kept for the backward pass"]
        return [f"FSDP{by_default}", *groups, *kept, *([] if s.prefetch else ["no prefetch"])]
    when = "during the forward pass" if s.prefetch else "after the optimizer step"
    each = ["gradients reduced every micro-batch"] if s.zero == 2 and s.micro_batches > 1 else []
    return [f"ZeRO-{s.zero}", *groups, *each, f"parameters gathered {when}"]


def _schedule(c: LanguageConfig) -> list[str]:
    """How many micro-batches there are, and the pipeline's schedule where it is not 1F1B."""
    s = c.layout
    size = f" of {c.micro_batch}, the largest that fits" if "micro_batch" in c.left_open else ""
    several = [f"{s.micro_batches} micro-batches{size}"] if s.micro_batches > 1 else []
    if s.pipeline == 1 or s.schedule == "1f1b":
        return several
    virtual = f" with {s.virtual_stages} virtual stages" if s.virtual_stages > 1 else ""
    return [*several, f"{SCHEDULES.get(s.schedule, s.schedule)} schedule{virtual}"]


def _switches(c: LanguageConfig) -> list[tuple[bool, str]]:
    """What is on or off by default in some frameworks, or changes what the step is."""
    s, t, experts = c.layout, c.training, c.model.experts
    reduces = s.data * s.context > 1 and s.zero < 2
    return [
        (t.optimizer != "adamw", f"{t.optimizer} optimizer"),
        (t.fp8_weights, "weights kept in fp8"),
        (c.document_tokens > 0, f"documents of {c.document_tokens:,} tokens packed"),
        (t.compiled, "torch.compile" if c.framework.name != "jax" else "compiled"),
        (t.cuda_graphs, "CUDA graphs"),
        (t.frozen, f"only {ADAPTER_NAMES.get(t.adapters, t.adapters)} adapters trained"),
        (t.offload == "optimizer", "optimizer on the CPU"),
        (not t.master_weights and t.half, "autocast"),
        (s.sequence_parallel, "sequence parallelism"),
        (s.async_tensor, "asynchronous tensor parallelism"),
        (s.expert_tensor > 1, f"experts cut over {s.expert_tensor}"),
        (s.expert > 1 and s.expert_dispatch == "once", "tokens dispatched once per node"),
        (s.expert_overlap != "none", "expert exchanges overlapped"),
        *_routing(experts),
        (reduces and not s.overlap_gradients, "gradients reduced after the backward pass"),
        (reduces and s.states_buckets, f"buckets of {s.bucket_mb:g} MB"),
    ]


def _routing(experts: Experts | None) -> list[tuple[bool, str]]:
    if experts is None:
        return []
    return [
        (experts.capacity_factor > 0, f"capacity factor {experts.capacity_factor:g}"),
        (not experts.capacity_factor and experts.imbalance == 1.0, "experts balanced"),
        (not experts.capacity_factor and experts.imbalance != 1.0, f"expert imbalance {experts.imbalance:g}"),
    ]


def _recomputation(c: LanguageConfig) -> list[str]:
    if c.training.recompute == "none":
        return []
    n = c.training.recompute_layers
    if c.training.recompute_modules:
        return [f"{' and '.join(c.training.recompute_modules)} run again"]
    to_fit = " to fit" if c.training.recompute == "full" and "recompute" in c.left_open else ""
    return [f"{n} layers of each stage run again" if n else f"{c.training.recompute} recomputation{to_fit}"]
