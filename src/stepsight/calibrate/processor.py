"""The processor that was calibrated, as the platform's ``[gpu]`` table describes it.

A CPU rank is one core with what was measured of it. A GPU is its catalogue entry, or what its driver says
of it; a figure that neither gives is an error, not a guess.
"""

from __future__ import annotations

import platform as host_platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.memory import BYTES_PER_GB
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.measured import MeasuredProcessor
from stepsight.run.memory import machine_memory_bytes

ABOUT = "measured by stepsight calibrate"
CORES_PER_SM = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
"""fp32 lanes of a multiprocessor by compute capability (CUDA programming guide)."""
L2_PER_MEMORY = 2.5
"""L2 over memory bandwidth of a GPU outside the catalogue: V100 2.4, A100 2.9, H100 1.7 (catalogue)."""


def cpu_spec(machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """One rank's share of this machine: a single core at a nominal clock, and its part of the memory."""
    return GpuSpec(
        name=_cpu_name(), vendor=host_platform.machine(), architecture="cpu", sms=1, clock_mhz=1000.0,
        memory_gb=max(machine_memory_bytes() / BYTES_PER_GB / ranks, 0.1), memory_gbps=machine.memory_gbps,
        l2_mb=last_level_cache_mb(), l2_gbps=4 * machine.memory_gbps,
        peak_tflops={"fp32": machine.gflops / 1e3}, pcie_gbps=machine.memory_gbps, launch_us=0.0,
        kernel_gap_us=0.0, source=ABOUT,
    )  # fmt: skip


def cuda_spec(properties: Any, machine: MeasuredProcessor) -> GpuSpec:
    """The GPU of these ``torch.cuda.get_device_properties``; memory as this board has it."""
    memory_gb = properties.total_memory / BYTES_PER_GB
    entry = find_gpu(properties.name)
    if entry is not None:
        return replace(entry.gpu, memory_gb=memory_gb, source=f"{entry.gpu.source}; memory: the driver")
    sms, clock_khz = properties.multi_processor_count, getattr(properties, "clock_rate", 0)
    l2_bytes = getattr(properties, "L2_cache_size", 0)
    lanes = CORES_PER_SM.get((properties.major, properties.minor), 0)
    if not (sms and clock_khz and l2_bytes and lanes):
        raise InputError(
            properties.name, "is not in the catalogue, and its driver does not say clock, L2 and lanes",
            "add a TOML file for it (docs/platforms.md) and calibrate with that name",
        )  # fmt: skip
    clock_mhz = clock_khz / 1e3
    return GpuSpec(
        name=properties.name, vendor="nvidia", architecture=f"sm_{properties.major}{properties.minor}",
        sms=sms, clock_mhz=clock_mhz, memory_gb=memory_gb, memory_gbps=machine.memory_gbps,
        l2_mb=l2_bytes / 2**20, l2_gbps=L2_PER_MEMORY * machine.memory_gbps,
        peak_tflops={"fp32": 2 * lanes * sms * clock_mhz / 1e6}, pcie_gbps=15.75,
        source=f"the driver; memory bandwidth {ABOUT}; PCIe: generation 3 assumed",
    )  # fmt: skip


def processor_spec(device: str, machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """What one rank computes on."""
    if device == "cpu":
        return cpu_spec(machine, ranks)
    import torch

    return cuda_spec(torch.cuda.get_device_properties(0), machine)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return host_platform.processor() or "cpu"


def last_level_cache_mb() -> float:
    """The largest cache the operating system tells of; 1 MB where it tells nothing."""
    sizes = [1.0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K"):
            sizes.append(float(text[:-1]) / 1024)
        elif text.endswith("M"):
            sizes.append(float(text[:-1]))
    return max(sizes)
