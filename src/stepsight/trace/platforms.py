"""The platform a trace was recorded on, and what a trace says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu, gpu_catalogue
from stepsight.hardware.spec import ContentionSpec, GpuSpec
from stepsight.platform.load import Platform, load_platform
from stepsight.trace.run import TraceRun

C = area("traces")

_CHIP = re.compile(
    r"(GB[23]00|GH200|H100|H200|H800|H20|B[23]00|A100|A800|V100|P100|MI\d{3}X?|L40S|L20|L4|A10|A30|A40|T4|P4)",
    re.IGNORECASE,
)
MOST_SMS = 4096
"""No GPU has more multiprocessors."""


def guess_platform(run: TraceRun) -> str:
    """The catalogue name of the trace's machine, from its deviceProperties and world size."""
    path, fix = run.ranks[0].path, "name a platform with --platform, as 1xV100-SXM2"
    if not run.device:
        raise InputError(path, "does not say which GPU it ran on", fix)
    gpu = _catalogued(run)
    if gpu is None:
        raise InputError(path, f"ran on {run.device!r}, which the catalogue does not have", fix)
    return _shape(run, gpu.name)


def _shape(run: TraceRun, gpu: str) -> str:
    per_node = max(1, min(run.world_size, run.gpus_on_host or 8))
    nodes, rest = divmod(run.world_size, per_node)
    return f"{nodes}x{per_node}x{gpu}" if nodes > 1 and rest == 0 else f"{run.world_size}x{gpu}"


def _catalogued(run: TraceRun) -> GpuSpec | None:
    """The catalogue's GPU of that name, or of its boards with that chip the one with the nearest memory."""
    entry = find_gpu(run.device)
    if entry:
        return entry.gpu
    chip = _CHIP.search(run.device)
    boards = (
        e.gpu for name, e in gpu_catalogue().items() if chip and name.upper().startswith(chip[1].upper())
    )

    def apart(gpu: GpuSpec) -> tuple[float, bool]:
        return abs(gpu.memory_gb - (run.memory_gb or gpu.memory_gb)), "PCIE" in gpu.name

    return min(boards, key=apart, default=None)


def own_platform(run: TraceRun) -> tuple[Platform, list[str]]:
    """The machine of a trace with its models, and notes on it.

    A GPU that the catalogue does not have is described by the trace's deviceProperties and its nearest
    relative: enough for its own step, which is measured; its models are the relative's.
    """
    gpu = _catalogued(run) if run.device else None
    if gpu is not None:
        name = _shape(run, gpu.name)
        return load_platform(name), [f"platform {name}, as the trace's deviceProperties say"]
    relative, why = _relative(run)
    platform = load_platform(_shape(run, relative.name))
    if not run.device:
        return platform, [f"the trace does not say which GPU it ran on; {why}: {relative.name} is assumed"]
    properties = run.ranks[0].linked.trace.device_properties
    sms = _sms(properties) or relative.sms
    scale = sms / relative.sms
    described = replace(
        relative, name=run.device, aliases=(), sms=sms, memory_gb=run.memory_gb or relative.memory_gb,
        memory_gbps=relative.memory_gbps * scale, l2_gbps=relative.l2_gbps * scale,
        peak_tflops={d: t * scale for d, t in relative.peak_tflops.items()},
        source=f"deviceProperties of a trace; rates by its multiprocessors after {relative.name}",
    )  # fmt: skip
    spec = replace(platform.spec, name=_shape(run, run.device), gpu=described)
    note = (
        f"{run.device!r} is not in the catalogue: {why}; its rates are taken after {relative.name} by"
        f" {sms} multiprocessors. Measured times hold; model times are rough"
    )
    return replace(platform, spec=spec), [note]


def _sms(properties: Mapping[str, object]) -> int:
    """Multiprocessors of the device; zero where the trace states none that can be."""
    stated = properties.get("numSms")
    return stated if type(stated) is int and 0 < stated <= MOST_SMS else 0


def _relative(run: TraceRun) -> tuple[GpuSpec, str]:
    """The catalogue's GPU most like one that it does not have, and why."""
    trace = run.ranks[0].linked.trace
    properties = trace.device_properties
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    stated = type(major) is int and type(minor) is int
    names = " ".join({e.name for e in trace.gpu})
    amd = _AMD.search(f"{run.device} {names}") or any(e.name.startswith("hip") for e in trace.runtime)
    known, why = (_BY_GFX, "AMD, gfx") if amd else (_BY_CAPABILITY, "compute capability ")
    wanted = known.get((major, minor), ()) if stated else ()
    why += f"{major}.{minor}"
    if not wanted:
        wanted, why = next(
            ((gpus, f"its kernels are {made}") for name, gpus, made in _BY_KERNELS if name.search(names)),
            (("V100-SXM2-16G",), "nothing in it tells"),
        )
    found = [e.gpu for name, e in gpu_catalogue().items() if name in wanted]
    sms = _sms(properties)
    return min(found, key=lambda g: (abs(g.sms - sms) if sms else 0, wanted.index(g.name))), why


_AMD = re.compile(r"AMD|Radeon|Instinct|Cijk|MIOpen|miopen|rocprim")
"""Names of devices and kernels of AMD, whose numbers of an architecture mean something else than NVIDIA's."""
_BY_CAPABILITY: dict[tuple[object, object], tuple[str, ...]] = {
    (6, 0): ("P100-PCIE-16G",), (6, 1): ("TITAN-Xp",), (7, 0): ("V100-SXM2-16G",),
    (7, 5): ("T4", "RTX-2080Ti", "TITAN-RTX"), (8, 0): ("A100-SXM4-40G",), (8, 6): ("RTX-3090", "A40"),
    (8, 7): ("RTX-3090",), (8, 9): ("L4", "L40S"), (9, 0): ("H100-SXM-80G", "H100-PCIE-80G"),
    (10, 0): ("B200-SXM-180G",), (10, 3): ("B200-SXM-180G",), (12, 0): ("L40S",),
}  # fmt: skip
"""GPUs of the catalogue by CUDA's compute capability."""
_BY_GFX: dict[tuple[object, object], tuple[str, ...]] = {
    (9, 0): ("MI250", "MI210", "MI250X", "MI100"), (9, 4): ("MI300X", "MI325X"), (9, 5): ("MI355X", "MI350X"),
    (11, 0): ("RX-7900-XTX",),
}  # fmt: skip
"""AMD's by the first numbers of gfx: gfx908 and gfx90a (a GPU is one die), gfx942, gfx950, gfx1100."""
_BY_KERNELS = (
    (re.compile(r"sm90|nvjet|hopper"), ("H100-SXM-80G",), "made for Hopper"),
    (re.compile(r"ampere|cutlass_80|sm80"), ("A100-SXM4-40G",), "made for Ampere"),
    (re.compile(r"turing|sm75"), ("T4",), "made for Turing"),
    (re.compile(r"volta|sm70|s884"), ("V100-SXM2-16G",), "made for Volta"),
    (re.compile(r"maxwell|pascal|sm6"), ("P100-PCIE-16G",), "made for Pascal"),
    (_AMD, ("MI300X",), "AMD's"),
)


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
        for launch in rank.linked.launches:
            kernel, before = launch.gpu[0], launch.free_us[0]
            if launch.call.end > before + C.SURELY_IDLE_US:
                idle.append(kernel.ts - launch.call.end)
            elif launch.call.end + C.SURELY_QUEUED_US < before:
                queued.append(kernel.ts - before)
    return (
        float(np.clip(np.median(idle), 0.0, 20.0)) if len(idle) >= 20 else None,
        float(np.clip(np.median(queued), 0.0, 10.0)) if len(queued) >= 20 else None,
    )
