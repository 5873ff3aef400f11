"""What a GPU cannot run, refused with what to use instead, and what a reader should know of a slow choice."""

from __future__ import annotations

from dataclasses import replace

from stepsight.errors import InputError
from stepsight.hardware.spec import NEVER_EMULATED, GpuSpec, emulated, has_units, lack, substitute
from stepsight.kernels.attention import FASTEST, impossible, runs_wide
from stepsight.kernels.families import FAMILIES, PRODUCTS
from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.display import change, share, time
from stepsight.prediction.language import LanguageStep
from stepsight.program.job import Job
from stepsight.program.variants import FLASH2
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload
from stepsight.workload.llm.attention import core
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.recipe import recipe_of

OUTPACED = ("flash", FLASH2, "flash1")
"""Kernels that a newer one of the same GPU replaces without another change."""
MUCH = 0.25
"""A share of the step that is worth another layout."""
CLEARLY = 0.03
"""Share of the step from which a faster kernel is worth a line."""


def check_runnable(workload: Workload, platform: Platform) -> None:
    """Refuses a type without units that nothing emulates, and attention kernels not made for the GPU."""
    gpu = platform.spec.gpu
    if platform.spec.host.synchronous or isinstance(workload, DlrmWorkload):
        return
    eager = workload.eager
    if eager is not None:
        if eager.attention == "flash" and not eager.half:
            raise InputError(
                "training.attention",
                f"is flash: its kernels compute in half precision, not in {eager.precision}",
                'set training.precision = "bf16", or training.attention = "eager"',
            )
        return
    chosen = workload.config.training
    if chosen.precision in NEVER_EMULATED and not has_units(gpu, chosen.precision):
        raise InputError(
            "training.precision", f"is {chosen.precision}: {lack(gpu, chosen.precision)}",
            substitute(gpu, chosen.precision),
        )  # fmt: skip
    why = impossible(chosen.attention, gpu, chosen.dtype)
    if why is not None:
        raise InputError("training.attention", f"is {chosen.attention}: {why.problem}", why.fix)


def check_job(job: Job, gpu: GpuSpec) -> None:
    """The same for a job of kernels, whose types were chosen elsewhere."""
    for dtype in sorted(NEVER_EMULATED & used_types(job)):
        if not has_units(gpu, dtype):
            raise InputError(
                "--platform", f"{lack(gpu, dtype)}, and the captured step computes in {dtype}",
                f"capture it again; {substitute(gpu, dtype)}",
            )  # fmt: skip


def missing_units(job: Job, gpu: GpuSpec) -> tuple[str, ...]:
    """A note for each type that the job computes in and the GPU has no unit for."""
    return tuple(emulated(gpu, dtype) for dtype in sorted(used_types(job)) if not has_units(gpu, dtype))


def used_types(job: Job) -> frozenset[str]:
    """The types of a job's matrix products."""
    return frozenset(
        k.dtype
        for op in job.distinct_ops()
        for k in op.kernels
        if (known := FAMILIES.get(k.family)) and known.category in PRODUCTS
    )


def language_warnings(c: LanguageConfig, gpu: GpuSpec) -> tuple[str, ...]:
    """The same for a language model."""
    types = dict.fromkeys((c.training.product_dtype, c.training.wide_product))
    return tuple(emulated(gpu, dtype) for dtype in types if not has_units(gpu, dtype))


def borrowed(c: LanguageConfig) -> tuple[str, ...]:
    """A note where a recipe has no measured host work of its own."""
    recipe = recipe_of(c.recipe) if c.recipe else None
    if recipe is None or not recipe.borrows:
        return ()
    return (f"recipe {recipe.name} has no measured host overheads: those of {recipe.borrows} are used",)


def precision_warning(answer: Prediction) -> str:
    """A warning for a job in a type that its GPU has no units for."""
    gpu = answer.gpu
    stated = answer.setup.precision if answer.setup else ""
    precision = stated or (answer.throughput.dtype if answer.timeline.priced.job.distinct_ops() else "")
    return "" if gpu is None or not precision or has_units(gpu, precision) else emulated(gpu, precision)


def layout_left_open(c: LanguageConfig, exposed: float) -> tuple[str, ...]:
    """A line where nobody stated a layout, and the one by default waits for communication much of the step.

    ``exposed``: the share of the step that exposed communication takes.
    """
    s = c.layout
    sharded = "recompute" in c.left_open and s.zero == 3
    if not (sharded or "layout" in c.left_open) or exposed < MUCH:
        return ()
    experts = ", expert parallelism (ep)" if c.model.experts else ""
    name = f"FSDP over {c.ranks:,} GPUs" if sharded else f"ep {s.expert}, pp {s.pipeline}"
    return (
        f"no layout given: {name} waits for communication {share(exposed)} of the"
        f" step; stepsight tune searches tensor and pipeline parallelism (tp, pp){experts} and micro-batches"
        " (mbs)",
    )


def experts_cross(c: LanguageConfig, platform: Platform) -> tuple[str, ...]:
    """A line where groups of experts do not tile a node, so that some lie on two."""
    per_node, group = platform.spec.gpus_per_node, c.layout.expert * c.layout.expert_tensor
    if c.layout.expert == 1 or group > per_node or per_node % group == 0 or c.ranks <= per_node:
        return ()
    used = per_node - per_node % group
    return (
        f"experts over {group} GPUs do not divide the {per_node} that one link joins: some groups span two"
        f" nodes; nodes of {used} in the platform's name avoid that",
    )


def batch_left_open(c: LanguageConfig, idle: float) -> tuple[str, ...]:
    """A line where nobody stated a batch, and the one by default leaves the device waiting for the host."""
    if c.states_batch or idle < MUCH:
        return ()
    each = "image" if c.model.patches else "sequence"
    return (
        f"no batch given: with one {each} per rank the device waits for the host {share(idle)}"
        " of the step; give one, such as --set mbs=64",
    )


def faster_attention(c: LanguageConfig, platform: Platform, found: Prediction) -> tuple[str, ...]:
    """A line where another attention kernel of this GPU clearly shortens the step ``found``, with the step
    that it gives: tried, where the kernel's own gain is that large."""
    if c.training.attention not in OUTPACED or not runs_wide(platform.spec.gpu):
        return ()
    name, step_us = FASTEST, found.step_time_us
    other = replace(c, training=replace(c.training, attention=name))
    attention = found.breakdown_us.get("attention", 0.0) / step_us
    if attention * (1 - _attention_us(other, platform) / _attention_us(c, platform)) < CLEARLY:
        return ()
    gain = 1 - LanguageStep(other, platform).step_us() / LanguageStep(c, platform).step_us()
    if gain < CLEARLY:
        return ()
    gpu = platform.spec.gpu.name
    return (
        f"FlashAttention-2 uses only part of {gpu}'s tensor cores: with --set training.attention={name}"
        f" (Transformer Engine, torch's SDPA) the step takes {time((1 - gain) * step_us)}"
        f" ({change(-gain, 1)})",
    )


def _attention_us(c: LanguageConfig, platform: Platform) -> float:
    """Attention proper of one layer, forward and backward."""
    both = core(c)
    return float(platform.kernels.estimate([*both.forward, *both.backward]).time_us.sum())
