"""Anchoring: what a trace measured carries over to what it did not.

A kernel that stays as it was keeps its measured time. One that changes (another GPU, another size) takes

    model(new) · (measured / model(old)) ^ w

so that what the model misses of this kernel here is expected, in part, there. Collectives likewise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from stepsight.hardware.spec import ContentionSpec, GpuSpec, PlatformSpec
from stepsight.platform.load import Platform
from stepsight.prediction.traced.constants import (
    COLLECTIVE_WEIGHT,
    MOST_COLLECTIVE_RATIO,
    MOST_KERNEL_RATIO,
    UNSIZED_SPREAD,
)
from stepsight.prediction.traced.jobs import kept_delay_us, with_kernels
from stepsight.prediction.traced.weights import AnchorWeights, class_of, shipped_weights
from stepsight.program.job import Collective, HostTimes, Job, Kernel, Op, Sizing
from stepsight.simulate.price import estimate_collective
from stepsight.simulate.sustained import sustained
from stepsight.trace.rules import RULES
from stepsight.trace.step.missing_ranks import TYPICAL, waited_us

Like = tuple[str, str, float]
"""What like collectives share: group, kind and bytes."""


def anchored(job: Job, own: Platform, weights: AnchorWeights | None = None, *, factor: float = 1.0) -> Job:
    """The job with every kernel and collective knowing how it compares with the models of its own machine.

    Every measured time, delay, host time and correction is then taken times ``factor``.
    """
    weights = weights or shipped_weights()
    kernels = list({id(k): k for p in job.programs for op in p.ops for k in op.kernels}.values())
    plain = [replace(k, correction=1.0) for k in kernels]
    counts = Counter(id(k) for p in job.programs for op in p.ops for k in op.kernels)
    often = np.array([counts[id(k)] for k in kernels], dtype=float)
    times = sustained(plain, often, own).estimates.time_us if kernels else np.zeros(0)
    found = {id(k): _correction(k, t, weights) for k, t in zip(kernels, times.tolist(), strict=True)}
    return rescaled(job, factor, found, _collective_corrections(job, own))


def rescaled(
    job: Job, factor: float, kernels: Mapping[int, float] | None = None,
    collectives: Mapping[Like, float] | None = None,
) -> Job:  # fmt: skip
    """The job with every measured time, delay, host time and correction times ``factor``.

    ``kernels`` are new corrections by ``id``, ``collectives`` of those with a measured time.
    """
    corrections, of_collectives = kernels or {}, collectives or {}
    made: dict[int, Kernel] = {}

    def changed_kernel(k: Kernel) -> Kernel:
        if id(k) not in made:
            measured_us = None if k.measured_us is None else factor * k.measured_us
            made[id(k)] = replace(
                k, measured_us=measured_us, late_us=factor * k.late_us, waited_us=factor * k.waited_us,
                correction=factor * corrections.get(id(k), k.correction),
            )  # fmt: skip
        return made[id(k)]

    def changed(op: Op) -> Op:
        c, host = op.collective, op.overhead_us
        if c is not None:
            correction = of_collectives.get(_like(c), c.correction) if c.measured_us else c.correction
            measured_us = None if c.measured_us is None else factor * c.measured_us
            late_us, correction = factor * c.late_us, factor * correction
            c = replace(c, measured_us=measured_us, late_us=late_us, correction=correction)
        if host is not None:
            t1, t2, t3 = factor * host.t1, factor * host.t2, factor * host.t3
            host = HostTimes(t1, t2, t3, factor * host.t4, factor * host.t5)
        kernels = tuple([changed_kernel(k) for k in op.kernels])
        return replace(op, kernels=kernels, collective=c, overhead_us=host)

    return replace(_each_op(job, changed), start_us=tuple(factor * t for t in job.start_us))


def _correction(kernel: Kernel, model_us: float, weights: AnchorWeights) -> float:
    if kernel.measured_us is None or kernel.measured_us <= 0 or model_us <= 0:
        return kernel.correction
    weight = weights.weight(class_of(kernel), kernel.measured_us)
    ratio = kernel.measured_us / model_us
    return float(min(max(ratio, 1 / MOST_KERNEL_RATIO), MOST_KERNEL_RATIO) ** weight)


def _collective_corrections(job: Job, own: Platform) -> dict[Like, float]:
    """Corrections of collectives, by the shortest of like calls: longer ones waited for others."""
    measured = [c for p in job.programs for op in p.ops if (c := op.collective) and c.measured_us]
    shortest = _shortest(measured)
    corrections: dict[Like, float] = {}
    for c in measured:
        key = _like(c)
        if key not in corrections:
            estimate = estimate_collective(job, own, c)
            model_us = estimate.time_us if estimate else 0.0
            ratio = RULES.value(TYPICAL) * shortest[key] / model_us if model_us > 0 else 1.0
            within = min(max(ratio, 1 / MOST_COLLECTIVE_RATIO), MOST_COLLECTIVE_RATIO)
            corrections[key] = within**COLLECTIVE_WEIGHT
    return corrections


def _shortest(collectives: Iterable[Collective]) -> dict[Like, float]:
    """The shortest measured time of like calls."""
    found: dict[Like, float] = {}
    for c in collectives:
        if c.measured_us:
            found[_like(c)] = min(found.get(_like(c), float("inf")), c.measured_us)
    return found


def moved(job: Job, own: Platform, platform: Platform) -> tuple[Job, Platform]:
    """An anchored job on another platform: what differs there loses its measured time."""
    other_gpu = not same_gpu(own.spec.gpu, platform.spec.gpu)
    if other_gpu:
        slower = _slower(own.spec.gpu, platform.spec.gpu)
        job = with_kernels(job, lambda k: _unmeasured(_in_a_type_of(k, platform.spec.gpu), slower))
    if other_gpu or not _same_links(own.spec, platform.spec):
        job = _without_measured_collectives(job)
    # What slowed kernels beside others is in their measured times already.
    spec = replace(platform.spec, contention=ContentionSpec())
    if not other_gpu:
        spec = replace(spec, gpu=replace(spec.gpu, launch_us=0.0, kernel_gap_us=0.0))
    return job, replace(platform, spec=spec)


def by_models_elsewhere(job: Job, own: Platform, platform: Platform) -> Job:
    """A job of models only on another platform: kernels without sizes are scaled from measured times."""
    if same_gpu(own.spec.gpu, platform.spec.gpu):
        return job
    known = anchored(with_kernels(job, lambda k: k if k.opaque else replace(k, measured_us=None)), own)
    slower = _slower(own.spec.gpu, platform.spec.gpu)
    return with_kernels(known, lambda k: _unmeasured(_in_a_type_of(k, platform.spec.gpu), slower))


def same_gpu(a: GpuSpec, b: GpuSpec) -> bool:
    """Whether two specifications are of one GPU, whatever their launch delays."""
    figures = ("name", "sms", "clock_mhz", "memory_gbps", "peak_tflops", "l2_mb", "pcie_gbps")
    return all(getattr(a, f) == getattr(b, f) for f in figures)


def _same_links(a: PlatformSpec, b: PlatformSpec) -> bool:
    return (a.link, a.nic, a.gpus_per_node) == (b.link, b.nic, b.gpus_per_node)


def _unmeasured(kernel: Kernel, slower: float) -> Kernel:
    if kernel.measured_us is None:
        return kernel
    spread = UNSIZED_SPREAD if kernel.sizing in (Sizing.UNKNOWN, Sizing.GRID) else kernel.size_spread
    late_us = kept_delay_us(kernel, slower)
    return replace(kernel, measured_us=None, opaque=False, size_spread=spread, late_us=late_us, waited_us=0.0)


def _in_a_type_of(kernel: Kernel, gpu: GpuSpec) -> Kernel:
    """A kernel in bf16 or tf32 on a GPU without such units: fp16 and fp32, as people run it there."""
    substitute = {"bf16": "fp16", "tf32": "fp32"}.get(kernel.dtype)
    if substitute is None or kernel.dtype in gpu.peak_tflops or substitute not in gpu.peak_tflops:
        return kernel
    return replace(kernel, dtype=substitute)


def _slower(old: GpuSpec, new: GpuSpec) -> float:
    """How much longer work of no known kind takes: between bandwidth and arithmetic."""
    ratios = [old.memory_gbps / new.memory_gbps]
    ratios += [old.peak_flops(d) / new.peak_flops(d) for d in ("fp32", "tf32")]
    return float(np.exp(np.mean(np.log(ratios))))


def _without_measured_collectives(job: Job) -> Job:
    """Collectives that the models time; what a call waited for ranks without a trace stays."""
    shortest = _shortest(op.collective for p in job.programs for op in p.ops if op.collective)
    alone = len(job.programs) == 1 < job.ranks

    def changed(op: Op) -> Op:
        c = op.collective
        if c is None or not c.measured_us:
            return op
        waited = waited_us(c.measured_us, shortest[_like(c)]) if alone else 0.0
        late_us = waited if waited > 0 else c.late_us
        return replace(op, collective=replace(c, measured_us=None, late_us=late_us))

    return _each_op(job, changed)


def with_waits_kept(job: Job, own: Platform) -> Job:
    """An anchored job whose collectives the models time, for another number of ranks: what each took beyond
    its model stays as a wait, so that as many ranks as before take as long as before."""
    model_us: dict[Like, float] = {}

    def changed(op: Op) -> Op:
        c = op.collective
        if c is None or not c.measured_us:
            return op
        if _like(c) not in model_us:
            estimate = estimate_collective(job, own, c)
            model_us[_like(c)] = estimate.time_us if estimate else 0.0
        waited_us = max(c.measured_us - c.correction * model_us[_like(c)], 0.0)
        return replace(op, collective=replace(c, measured_us=None, late_us=c.late_us + waited_us))

    return _each_op(job, changed)


def _like(c: Collective) -> Like:
    return c.group, c.kind, c.bytes


def _each_op(job: Job, change: Callable[[Op], Op]) -> Job:
    return replace(
        job, programs=tuple(replace(p, ops=tuple(change(op) for op in p.ops)) for p in job.programs)
    )
