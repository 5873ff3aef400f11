"""Anchoring: what a trace measured carries over to what it did not.

A kernel that stays as it was keeps its measured time. One that changes (another GPU, another size) takes

    model(new) · (measured / model(old)) ^ w

so that what the model misses of this kernel here is expected, in part, there. Collectives likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from stepsight.constants import area
from stepsight.hardware.spec import ContentionSpec, GpuSpec
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, HostTimes, Kernel, Op, Sizing
from stepsight.program.observation import (
    Observation,
    ObservedJob,
    OpObservations,
    of_collective,
    with_collective,
)
from stepsight.simulate.price import estimate_collective
from stepsight.simulate.sustained import sustained
from stepsight.trace.job import waited_us

C = area("traces")

LARGE_CALL_BYTES = 64.0 * 2**20
"""A call that bandwidth bounds."""
PRODUCT, STREAM, UNSIZED = "product", "stream", "unsized"
"""Matrix products, convolutions and attention; kernels that stream data; kernels without sizes."""
Exponents = Mapping[str, float]
SHIPPED: Exponents = {PRODUCT: C.ANCHOR_PRODUCT, STREAM: C.ANCHOR_STREAM, UNSIZED: C.ANCHOR_UNSIZED}
Like = tuple[str, str, float]
"""What like collectives share: group, kind and bytes."""


def class_of(kernel: Kernel) -> str:
    """Which exponent a kernel takes."""
    if kernel.sizing is Sizing.UNKNOWN:
        return UNSIZED
    return PRODUCT if kernel.family.startswith(("gemm", "conv", "attention")) else STREAM


def anchored(
    job: ObservedJob, own: Platform, weights: Exponents = SHIPPED, *, factor: float = 1.0
) -> ObservedJob:
    """The job with every kernel and collective knowing how it compares with the models of its own machine.

    Every measured time, delay, host time and correction is then taken times ``factor``.
    """
    pairs = [pair for op, seen in job.ops() for pair in zip(op.kernels, seen, strict=False)]
    if pairs:
        plain = [replace(o, correction=1.0) for _, o in pairs]
        found = sustained([k for k, _ in pairs], np.ones(len(pairs)), own, plain)
        modelled_us = found.estimates.time_us
        corrections = iter(
            [_correction(k, o, t, weights) for (k, o), t in zip(pairs, modelled_us.tolist(), strict=True)]
        )
        job = with_kernels(job, lambda k, o: (k, replace(o, correction=next(corrections))))
    return rescaled(_with_collective_corrections(job, own), factor)


def rescaled(job: ObservedJob, factor: float) -> ObservedJob:
    """The job with every measured time, delay, host time and correction times ``factor``."""

    def changed(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        host = op.overhead_us
        if host is not None:
            t1, t2, t3 = factor * host.t1, factor * host.t2, factor * host.t3
            host = HostTimes(t1, t2, t3, factor * host.t4, factor * host.t5)
        return replace(op, overhead_us=host), tuple([_times(o, factor) for o in seen])

    made = job.each(changed)
    return replace(made, job=replace(made.job, start_us=tuple(factor * t for t in job.job.start_us)))


def _times(seen: Observation, factor: float) -> Observation:
    measured_us = None if seen.measured_us is None else factor * seen.measured_us
    return replace(
        seen, measured_us=measured_us, late_us=factor * seen.late_us, waited_us=factor * seen.waited_us,
        correction=factor * seen.correction,
    )  # fmt: skip


def _correction(kernel: Kernel, seen: Observation, model_us: float, weights: Exponents) -> float:
    if seen.measured_us is None or seen.measured_us <= 0 or model_us <= 0:
        return seen.correction
    ratio = seen.measured_us / model_us
    return float(min(max(ratio, 1 / C.MOST_KERNEL_RATIO), C.MOST_KERNEL_RATIO) ** weights[class_of(kernel)])


def _with_collective_corrections(job: ObservedJob, own: Platform) -> ObservedJob:
    """Collectives corrected by the shortest of like calls: longer ones waited for others."""
    shortest, model_us = _shortest(job), _modelled_us(job, own)

    def changed(c: Collective, seen: Observation) -> Observation:
        if not seen.measured_us or seen.opaque:
            return seen
        ratio = C.TYPICAL_CALL * shortest[_like(c)] / model_us(c) if model_us(c) > 0 else 1.0
        within = min(max(ratio, 1 / C.MOST_COLLECTIVE_RATIO), C.MOST_COLLECTIVE_RATIO)
        return replace(seen, correction=within**C.COLLECTIVE_WEIGHT)

    return _each_collective(job, changed)


def _modelled_us(job: ObservedJob, platform: Platform) -> Callable[[Collective], float]:
    """What a platform's models say of a job's collectives; zero where they say nothing."""

    @cache
    def time_us(c: Collective) -> float:
        estimate = estimate_collective(job.job, platform, c)
        return estimate.time_us if estimate else 0.0

    return time_us


def _shortest(job: ObservedJob) -> dict[Like, float]:
    """The shortest measured time of like calls."""
    found: dict[Like, float] = {}
    for op, seen in job.ops():
        measured_us = of_collective(op, seen).measured_us
        if op.collective is not None and measured_us:
            found[_like(op.collective)] = min(found.get(_like(op.collective), float("inf")), measured_us)
    return found


def moved(job: ObservedJob, own: Platform, platform: Platform) -> tuple[ObservedJob, Platform]:
    """An anchored job on another platform: what differs there loses its measured time."""
    other_gpu = not same_gpu(own.spec.gpu, platform.spec.gpu)
    if other_gpu:
        job = _on_gpu(job, own.spec.gpu, platform.spec.gpu)
    here, there = own.spec, platform.spec
    if (here.link, here.nic, here.gpus_per_node) != (there.link, there.nic, there.gpus_per_node):
        job = _without_measured_collectives(job, own, platform)
    # Measured times contain the contention between concurrent kernels already.
    spec = replace(platform.spec, contention=ContentionSpec())
    if not other_gpu:
        spec = replace(spec, gpu=replace(spec.gpu, launch_us=0.0, kernel_gap_us=0.0))
    return job, replace(platform, spec=spec)


def by_models_elsewhere(job: ObservedJob, own: Platform, platform: Platform) -> ObservedJob:
    """A job of models only on another platform: kernels without sizes are scaled from measured times."""
    job = _each_collective(job, lambda c, o: _moved_unsized(job, c, o, own, platform))
    if same_gpu(own.spec.gpu, platform.spec.gpu):
        return job
    job = with_kernels(job, lambda k, o: (k, o if o.opaque else replace(o, measured_us=None)))
    return _on_gpu(anchored(job, own), own.spec.gpu, platform.spec.gpu)


def _moved_unsized(
    job: ObservedJob, c: Collective, seen: Observation, own: Platform, platform: Platform
) -> Observation:
    """A collective whose size was not recorded, its measured time scaled as a large call of its kind."""
    if not seen.opaque or not seen.measured_us:
        return seen
    large = replace(c, bytes=LARGE_CALL_BYTES)
    old_us, new_us = (_modelled_us(job, where)(large) for where in (own, platform))
    return replace(seen, measured_us=seen.measured_us * (new_us / old_us if old_us and new_us else 1.0))


def _on_gpu(job: ObservedJob, old: GpuSpec, new: GpuSpec) -> ObservedJob:
    """The job without the kernel times that its own GPU took."""
    slower = _slower(old, new)

    def changed(kernel: Kernel, seen: Observation) -> tuple[Kernel, Observation]:
        kernel = _in_a_type_of(kernel, new)
        if seen.measured_us is None:
            return kernel, seen
        unsized = kernel.sizing is Sizing.UNKNOWN
        late_us = kept_delay_us(seen, slower)
        return (
            replace(kernel, size_spread=C.UNSIZED_SPREAD) if unsized else kernel,
            replace(seen, measured_us=None, opaque=False, late_us=late_us, waited_us=0.0),
        )

    return with_kernels(job, changed)


def same_gpu(a: GpuSpec, b: GpuSpec) -> bool:
    """Whether two specifications are of one GPU, whatever their launch delays."""
    figures = (
        "name", "sms", "clock_mhz", "memory_gbps", "peak_tflops", "l2_mb", "pcie_gbps", "power_w", "speed",
    )  # fmt: skip
    return all(getattr(a, f) == getattr(b, f) for f in figures)


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


def _without_measured_collectives(job: ObservedJob, own: Platform, platform: Platform) -> ObservedJob:
    """Collectives that the models time; what a call waited for ranks without a trace stays."""
    shortest = _shortest(job)
    alone = len(job.job.programs) == 1 < job.job.ranks

    def changed(c: Collective, seen: Observation) -> Observation:
        if not seen.measured_us or seen.opaque:
            return _moved_unsized(job, c, seen, own, platform)
        waited = waited_us(seen.measured_us, shortest[_like(c)]) if alone else 0.0
        return replace(seen, measured_us=None, late_us=waited if waited > 0 else seen.late_us)

    return _each_collective(job, changed)


def with_waits_kept(job: ObservedJob, own: Platform) -> ObservedJob:
    """An anchored job whose collectives the models time, for another number of ranks: what each took beyond
    its model stays as a wait, so that as many ranks as before take as long as before."""
    model_us = _modelled_us(job, own)

    def changed(c: Collective, seen: Observation) -> Observation:
        if not seen.measured_us or seen.opaque:
            return seen
        waited = max(seen.measured_us - seen.correction * model_us(c), 0.0)
        return replace(seen, measured_us=None, late_us=seen.late_us + waited)

    return _each_collective(job, changed)


def _like(c: Collective) -> Like:
    return c.group, c.kind, c.bytes


def _each_collective(
    job: ObservedJob, change: Callable[[Collective, Observation], Observation]
) -> ObservedJob:
    def changed(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        if op.collective is None:
            return op, seen
        return op, with_collective(seen, change(op.collective, of_collective(op, seen)))

    return job.each(changed)


def with_kept_delays(job: ObservedJob) -> ObservedJob:
    """The job in which of all delays before kernels only those stay that nothing explains: the platform
    states the usual ones."""
    return with_kernels(
        job, lambda k, o: (k, replace(o, late_us=kept_delay_us(o), waited_us=0.0) if o.late_us else o)
    )


def kept_delay_us(observed: Observation, factor: float = 1.0) -> float:
    """The delay before a kernel that stays, times ``factor``."""
    unexplained_us = observed.late_us - observed.waited_us
    return factor * unexplained_us if unexplained_us > C.QUEUE_GAP_US else 0.0


def with_kernels(
    job: ObservedJob, change: Callable[[Kernel, Observation], tuple[Kernel, Observation]]
) -> ObservedJob:
    """The job with every kernel and its observation changed."""

    def changed(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        if not op.kernels:
            return op, seen
        made = [change(k, o) for k, o in zip(op.kernels, seen, strict=False)]
        kernels = tuple(k for k, _ in made)
        return replace(op, kernels=kernels), (*(o for _, o in made), *seen[len(kernels) :])

    return job.each(changed)
