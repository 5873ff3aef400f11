"""The platform folder: figures, models and the account of how they were measured."""

from __future__ import annotations

import json
import os
import platform as host_platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepsight.calibrate.fit import Fitted
from stepsight.calibrate.journal import disk_error
from stepsight.calibrate.rehearsal import InStep, scaled_contention
from stepsight.collectives.files.platform_files import FOLDER as COLLECTIVES
from stepsight.collectives.files.platform_files import write_timings_csv
from stepsight.collectives.files.timings import Timing
from stepsight.documents import write_whole
from stepsight.kernels.families import FAMILIES
from stepsight.overheads.operators import op_class
from stepsight.overheads.tables import OpStats, Overheads
from stepsight.run.memory import machine_memory_bytes

NOTES = "calibration.json"
_HOST_KINDS = {
    "forward": "host forward",
    "view": "host forward",
    "copy": "host forward",
    "backward": "host backward",
    "optimizer": "host optimizer",
    "collective": "host collective",
}
"""Which factor of the rehearsal a class of operators follows."""


def write_folder(
    folder: Path,
    name: str,
    device: str,
    ranks: int,
    fitted: Fitted,
    in_step: InStep,
    notes: Mapping[str, Any],
) -> None:
    """Write everything `load_platform` reads, with the in-step factors worked in."""
    factors = in_step.factors
    side_by_side = scaled_contention(fitted.contention, factors["overlap"])
    try:
        kernels = {f: factors["gemm"] if f == "gemm" else factors["vector"] for f in FAMILIES}
        replace(fitted.kernels, in_step=kernels).save(folder)
        if fitted.lookups is not None:
            phases = {"forward": factors["lookup forward"], "backward": factors["lookup backward"]}
            replace(fitted.lookups, in_step=phases).save(folder)
        if fitted.collectives:
            scale = factors["communication"]
            timings = [
                Timing(t.kind, t.ranks, t.nodes, t.bytes, t.time_us * scale) for t in fitted.collectives
            ]
            write_timings_csv(folder / COLLECTIVES / "measured.csv", timings)
        scaled_overheads(fitted.overheads, factors).save(folder / "overheads.json")
        account = {
            **notes,
            "in_step": dict(factors),
            "repeatability": fitted.repeat,
            "rehearsal_error": {k: round(v, 4) for k, v in in_step.errors_after.items()},
            "rehearsal_error_before": {k: round(v, 4) for k, v in in_step.errors_before.items()},
        }
        write_whole(folder / NOTES, json.dumps(account, indent=1) + "\n")
        # Last: without it the folder is no platform yet.
        spec = spec_toml(name, device, ranks, replace(fitted, contention=side_by_side))
        write_whole(folder / "platform.toml", spec)
    except OSError as error:
        raise disk_error(folder, error) from None


def scaled_overheads(overheads: Overheads, factors: Mapping[str, float]) -> Overheads:
    """Each class of operators by its own factor."""

    def scaled(stats: OpStats, factor: float) -> OpStats:
        parts = (getattr(stats, name) for name in OpStats.__struct_fields__)
        return OpStats(*(p.scaled(factor) if p is not None else None for p in parts))

    classes = {name: scaled(stats, factors[_HOST_KINDS[name]]) for name, stats in overheads.classes.items()}
    ops = {name: scaled(stats, factors[_HOST_KINDS[op_class(name)]]) for name, stats in overheads.ops.items()}
    return replace(overheads, ops=ops, classes=classes, _stems={})


def spec_toml(name: str, device: str, ranks: int, fitted: Fitted) -> str:
    """``platform.toml``: a processor per rank, described by what was measured of it."""
    machine, contention = fitted.kernels.machine, fitted.contention
    cache_mb = last_level_cache_mb()
    large = max(
        (t for t in fitted.collectives if t.kind == "all_reduce"), key=lambda t: t.bytes, default=None
    )
    gbps = large.bytes / large.time_us / 1e3 if large else machine.memory_gbps
    small = min((t.time_us for t in fitted.collectives), default=1.0)
    about = "measured by stepsight calibrate"
    return f"""# Written by `stepsight calibrate`; every figure below was measured on this machine.
name = {json.dumps(name)}
gpus_per_node = {ranks}
nodes = 1

[gpu]
name = {json.dumps(processor_name(device))}
vendor = {json.dumps(host_platform.machine() if device == "cpu" else "nvidia")}
architecture = {json.dumps(device)}
sms = 1
clock_mhz = 1000.0
memory_gb = {max(memory_gb(device) / (ranks if device == "cpu" else 1), 0.1):.1f}
memory_gbps = {machine.memory_gbps}
l2_mb = {cache_mb:.1f}
l2_gbps = {4 * machine.memory_gbps:.1f}
pcie_gbps = {machine.memory_gbps}
launch_us = 0.0
source = "{about}"

[gpu.peak_tflops]
fp32 = {machine.gflops / 1e3:.5f}

[link]
kind = "{"loopback" if device == "cpu" else "measured"}"
gbps = {gbps:.4f}
latency_us = {small:.1f}
source = "{about}"

[host]
name = "calibrated"
synchronous = {"true" if device == "cpu" else "false"}
cores = {os.cpu_count() or 1}
source = "{about}"

[contention]
compute_under_comm = {contention.compute_under_comm}
comm_under_compute = {contention.comm_under_compute}
lookups_forward = {contention.lookups_forward}
lookups_backward = {contention.lookups_backward}
source = "{about}"
"""


def processor_name(device: str) -> str:
    """What the maker calls it."""
    if device != "cpu":
        import torch

        return str(torch.cuda.get_device_name(0))
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return host_platform.processor() or "cpu"


def memory_gb(device: str) -> float:
    """The memory of the machine, or of one GPU."""
    if device != "cpu":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory / 1e9)
    return machine_memory_bytes() / 1e9


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
