"""The platform a trace was recorded on, and what a trace says about it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu, gpu_catalogue
from stepsight.hardware.spec import ContentionSpec
from stepsight.platform.load import Platform
from stepsight.trace.step.run import TraceRun

_MODEL = re.compile(
    r"(GB[23]00|GH200|H100|H200|H800|H20|B[23]00|A100|A800|V100|P100|MI\d{3}X?|L40S|L20|L4|A10|A30|A40|T4|P4)",
    re.IGNORECASE,
)
_IDLE_US = 5.0
_QUEUED_US = 10.0


def guess_platform(run: TraceRun) -> str:
    """The catalogue name of the trace's machine, from its deviceProperties and world size."""
    gpu = _gpu_name(run)
    per_node = max(1, min(run.world_size, run.gpus_on_host or 8))
    nodes, rest = divmod(run.world_size, per_node)
    if nodes > 1 and rest == 0:
        return f"{nodes}x{per_node}x{gpu}"
    return f"{run.world_size}x{gpu}"


def _gpu_name(run: TraceRun) -> str:
    if not run.device:
        raise InputError(
            run.ranks[0].path, "does not say which GPU it ran on", "name one with --platform, as 1xV100-SXM2"
        )
    entry = find_gpu(run.device)
    if entry:
        return entry.gpu.name
    model = _MODEL.search(run.device)
    alike = [
        e.gpu for name, e in gpu_catalogue().items() if model and name.upper().startswith(model[1].upper())
    ]
    if not alike:
        raise InputError(
            run.ranks[0].path, f"ran on {run.device!r}, which the catalogue does not have",
            "name a platform with --platform",
        )  # fmt: skip
    by_memory = sorted(
        alike, key=lambda g: (abs(g.memory_gb - (run.memory_gb or g.memory_gb)), "PCIE" in g.name)
    )
    return by_memory[0].name


def replay_platform(platform: Platform) -> Platform:
    """The platform for replay: what delays kernels is already in the trace's own durations."""
    gpu = replace(platform.spec.gpu, launch_us=0.0, kernel_gap_us=0.0)
    return replace(platform, spec=replace(platform.spec, gpu=gpu, contention=ContentionSpec()))


def traced_platform(platform: Platform, run: TraceRun) -> Platform:
    """The platform with the launch delay and the gap between queued kernels that the trace shows."""
    launch_us, gap_us = device_delays(run)
    gpu = platform.spec.gpu
    gpu = replace(
        gpu,
        launch_us=launch_us if launch_us is not None else gpu.launch_us,
        kernel_gap_us=gap_us if gap_us is not None else gpu.kernel_gap_us,
    )
    return replace(platform, spec=replace(platform.spec, gpu=gpu))


def device_delays(run: TraceRun) -> tuple[float | None, float | None]:
    """Median µs from a launch to its kernel on an idle stream, and between two queued kernels."""
    idle: list[float] = []
    queued: list[float] = []
    for rank in run.ranks:
        free = rank.resolver.free_at
        for launch in rank.linked.launches:
            kernel = launch.gpu[0]
            before = free.get(id(kernel), 0.0)
            if launch.call.end > before + _IDLE_US:
                idle.append(kernel.ts - launch.call.end)
            elif launch.call.end + _QUEUED_US < before:
                queued.append(kernel.ts - before)
    return (
        float(np.clip(np.median(idle), 0.0, 20.0)) if len(idle) >= 20 else None,
        float(np.clip(np.median(queued), 0.0, 10.0)) if len(queued) >= 20 else None,
    )
