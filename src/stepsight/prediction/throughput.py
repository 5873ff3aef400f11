"""A step time in the field's units: samples/s, tokens/s, TFLOP/s per GPU, MFU, joules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import product_flops
from stepsight.kernels.families import PRODUCTS, category
from stepsight.platform.power import Power
from stepsight.program.job import Job, Kernel, Op, Sizing
from stepsight.program.observation import Observations, ObservedJob, OpObservations
from stepsight.program.setup import Setup

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction

J_PER_WH = 3600.0
RECOMPUTED = "recompute"
"""The phase of operators that run a second time in the backward pass: no FLOPs of the model."""
LOW_PRECISION = ("fp8", "nvfp4", "mxfp8")
"""Types whose MFU is also given against the bf16 peak, as many papers do."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the whole job, and FLOPs against the peak of the GPUs that it uses.

    ``mfu`` is model FLOPs utilisation: the FLOPs of the model (without recomputation) over what the
    GPUs could do at the dense peak of ``dtype`` in the same time. ``dtype`` is the type that the workload
    states for its matrix products (fp8, if these are in fp8), else the type of most of the job's FLOPs.
    ``counted`` says where the FLOPs come from: "model" (stated by the workload), "kernels" (summed over the
    job's matrix products), or "unknown" (a trace without the sizes of some products states no FLOPs).
    ``hfu`` counts recomputed FLOPs as well, where there are any; ``mfu_of_bf16_peak`` is MFU against the bf16
    peak where ``dtype`` is fp8. Costs are known where the platform has a price.
    """

    samples_per_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    model_flops: float
    tflops_per_gpu: float
    mfu: float | None
    peak_tflops: float | None
    dtype: str
    counted: str
    hfu: float | None = None
    mfu_of_bf16_peak: float | None = None
    cost_per_step: float | None = None
    cost_per_million_samples: float | None = None
    cost_per_million_tokens: float | None = None
    samples_per_s_per_gpu: float | None = None


def throughput(
    job: Job | None, ranks: int, step_us: float, setup: Setup | None, gpu: GpuSpec | None,
    price: float | None = None, seen: Observations = (),
) -> Throughput:  # fmt: skip
    """Rates of a job on ``ranks`` ranks whose step takes ``step_us``.

    The job may stand for a part of the step, or be left out, where ``setup`` states the FLOPs of all of it
    and their type. ``price`` is what a GPU costs an hour.
    """
    stated = setup.model_flops if setup else None
    dtype = setup.product_dtype if setup and stated is not None else ""
    unknown = stated is None and job is not None and has_unknown_products(job)
    by_dtype = {} if job is None or dtype or unknown else job_flops(job, seen)
    dtype = dtype or max(by_dtype, key=lambda name: by_dtype[name], default="")
    flops = stated if stated is not None else sum(by_dtype.values())
    seconds = step_us / 1e6
    per_gpu = flops / ranks / seconds / 1e12 if seconds > 0 else 0.0
    peak = gpu.peak_flops(dtype) / 1e12 if gpu and dtype else None
    tokens = setup.tokens / seconds if setup and setup.tokens and seconds > 0 else None
    samples = setup.samples / seconds if setup and setup.samples and seconds > 0 else None
    cost = price * ranks * seconds / 3600 if price is not None else None
    mfu = per_gpu / peak if peak else None
    again = setup.recomputed_flops / flops if setup and flops else 0.0
    again = again or (recomputed_share(job) if job is not None and mfu is not None else 0.0)
    half = gpu.peak_flops("bf16") / 1e12 if gpu and dtype in LOW_PRECISION else None
    return Throughput(
        samples_per_s=samples,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / ranks if tokens else None,
        model_flops=flops,
        tflops_per_gpu=per_gpu,
        mfu=mfu,
        peak_tflops=peak,
        dtype=dtype,
        counted="model" if stated is not None else "unknown" if unknown else "kernels",
        hfu=mfu * (1 + again) if mfu is not None and again else None,
        mfu_of_bf16_peak=per_gpu / half if half else None,
        cost_per_step=cost,
        cost_per_million_samples=_per_million(cost, setup.samples if setup else None),
        cost_per_million_tokens=_per_million(cost, setup.tokens if setup else None),
        samples_per_s_per_gpu=samples / ranks if samples else None,
    )


def _per_million(cost: float | None, count: float | None) -> float | None:
    return 1e6 * cost / count if cost is not None and count else None


def recomputed_share(job: Job) -> float:
    """FLOPs that run a second time, as a share of the model's own."""
    if not any(op.phase == RECOMPUTED for program in job.programs for op in program.ops):
        return 0.0
    return sum(job_flops(job, recomputed=True).values()) / (sum(job_flops(job).values()) or 1.0)


def job_flops(job: Job, seen: Observations = (), *, recomputed: bool = False) -> dict[str, float]:
    """FLOPs of the matrix products of one step over all ranks, by the type they compute in: the model's own,
    or those that are ``recomputed``."""
    ranks = Counter(job.program_of_rank)
    total: dict[str, float] = {}
    observed = ObservedJob(job, seen)
    for number, program in enumerate(job.programs):
        ops = list(observed.of_program(number))
        kernels = _kernels(ops, recomputed)
        if program.period:  # blocks that are not listed are like the last listed one
            block = _kernels(ops[slice(*program.period.starts[-2:])], recomputed)
            kernels += Counter({kernel: times * program.period.skipped for kernel, times in block.items()})
        for (kernel, share), times in kernels.items():
            for part, count in kernel.parts or ((kernel, 1),):
                flops = times * count * ranks[number] * share * product_flops(part)
                if flops:
                    total[part.dtype] = total.get(part.dtype, 0.0) + flops
    return total


def _kernels(ops: Sequence[tuple[Op, OpObservations]], recomputed: bool) -> Counter[tuple[Kernel, float]]:
    """Kernels of known size. In a trace one call may be several kernels, each with its share."""
    return Counter(
        (k, o.share)
        for op, seen in ops
        if (op.phase == RECOMPUTED) is recomputed
        for k, o in zip(op.kernels, seen, strict=False)
        if k.sizing is not Sizing.UNKNOWN
    )


def has_unknown_products(job: Job) -> bool:
    """Whether a trace left the sizes of some of its matrix products out: their FLOPs are not known."""
    return any(
        k.sizing is Sizing.UNKNOWN and category(k.family) in PRODUCTS
        for program in job.programs for op in program.ops for k in op.kernels
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Energy:
    """What the boards of all GPUs of the job draw in one step; hosts, switches and cooling are not counted.

    ``clock`` is the share of the boost clock at which average power while computing meets the board's limit.
    ``gpu_w`` is the average power of one board over the step. ``grams_co2`` is known where the
    carbon intensity of the grid is given.
    """

    step_j: float
    step_wh: float
    gpu_w: float
    clock: float
    j_per_token: float | None
    j_per_sample: float | None
    grams_co2: float | None = None


def step_joules(dynamic_j: float | None, gpus: int, step_us: float, gpu: GpuSpec | None) -> float | None:
    """What all boards draw in a step: the energy of its kernels, and idle power for as long as it takes.

    No board draws more than its limit. None where the board's power or the kernels' energy is not known.
    """
    power = Power.of(gpu) if gpu is not None else None
    if power is None or dynamic_j is None or step_us <= 0:
        return None
    seconds = step_us / 1e6
    return min(dynamic_j + gpus * power.idle_w * seconds, gpus * power.limit_w * seconds)


def energy(p: Prediction) -> Energy | None:
    """None where the board's power is not known, or every time comes from a trace."""
    priced, setup, gpus = p.timeline.priced, p.setup, len(p.ranks)
    step_j = step_joules(priced.dynamic_j, gpus, p.step_time_us, p.gpu)
    if step_j is None:
        return None
    return Energy(
        step_j=step_j,
        step_wh=step_j / J_PER_WH,
        gpu_w=step_j / (p.step_time_us / 1e6) / gpus,
        clock=priced.clock,
        j_per_token=step_j / setup.tokens if setup and setup.tokens else None,
        j_per_sample=step_j / setup.samples if setup and setup.samples else None,
        grams_co2=None if p.carbon_g_per_kwh is None else step_j / J_PER_WH / 1e3 * p.carbon_g_per_kwh,
    )
