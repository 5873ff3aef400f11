"""The platform folder: figures, models and the account of how they were measured."""

from __future__ import annotations

import json
import os
import platform as host_platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.calibrate.fit import Fitted, fit_samples
from stepsight.calibrate.journal import Journal, step_us
from stepsight.calibrate.rehearsal import (
    HOST_KINDS,
    NOTHING_KNOWN,
    InStep,
    Rehearsal,
    find_factors,
    scaled_contention,
)
from stepsight.calibrate.session import NOISE, REHEARSAL
from stepsight.collectives.benchmark_files import FOLDER as COLLECTIVES
from stepsight.collectives.benchmark_files import Timing, write_timings_csv
from stepsight.constants import area
from stepsight.documents import disk_error, write_whole
from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import BYTES_PER_GB, GpuSpec
from stepsight.kernels.embedding.cpu.work import detect_caches
from stepsight.kernels.families import FAMILIES
from stepsight.kernels.measured import MeasuredProcessor
from stepsight.overheads.tables import OpStats, Overheads, op_class
from stepsight.platform.load import load_platform
from stepsight.run.worker import machine_memory_bytes
from stepsight.workload.files import parse_workload

ABOUT = "measured by stepsight calibrate"
NOTES = "calibration.json"
SPEC = "platform.toml"
DRAFT = ".draft"
AGAIN = "run again with --resume"


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
            "rehearsal_error": {k: round(v, 4) for k, v in in_step.errors.items()},
        }
        write_whole(folder / NOTES, json.dumps(account, indent=1) + "\n")
        # Last: without it the folder is no platform yet.
        processor = processor_spec(device, fitted.kernels.machine, ranks)
        slowed = replace(fitted, contention=side_by_side)
        spec = spec_toml(name, processor, ranks, slowed, synchronous=device == "cpu")
        write_whole(folder / SPEC, spec)
    except OSError as error:
        raise disk_error(folder, error, AGAIN) from None


@contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """A folder to write into; what stands in it at the end moves into ``folder``.

    While files move, ``folder`` has no platform.toml: a process that is killed then leaves no mixture of two
    calibrations, and the samples are there to go on from.
    """
    draft = folder / DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            yield draft
            files = sorted(p.relative_to(draft) for p in draft.rglob("*") if p.is_file())
            (folder / SPEC).unlink(missing_ok=True)
            for name in sorted(files, key=lambda name: name == Path(SPEC)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (draft / name).replace(folder / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise disk_error(folder, error, AGAIN) from None


def scaled_overheads(overheads: Overheads, factors: Mapping[str, float]) -> Overheads:
    """Each class of operators by its own factor."""

    def scaled(stats: OpStats, factor: float) -> OpStats:
        return stats.each(lambda stat: stat.scaled(factor))

    classes = {name: scaled(stats, factors[HOST_KINDS[name]]) for name, stats in overheads.classes.items()}
    ops = {name: scaled(stats, factors[HOST_KINDS[op_class(name)]]) for name, stats in overheads.ops.items()}
    return replace(overheads, ops=ops, classes=classes, _stems={})


def spec_toml(name: str, processor: GpuSpec, ranks: int, fitted: Fitted, *, synchronous: bool) -> str:
    """``platform.toml``: a processor per rank, its links, its host."""
    contention = fitted.contention
    large = max(
        (t for t in fitted.collectives if t.kind == "all_reduce"), key=lambda t: t.bytes, default=None
    )
    gbps = large.bytes / large.time_us / 1e3 if large else processor.memory_gbps
    small = min((t.time_us for t in fitted.collectives), default=1.0)
    plain = {f.name: getattr(processor, f.name) for f in fields(processor)}
    peaks, aliases = plain.pop("peak_tflops"), plain.pop("aliases")
    figures = "\n".join(f"{key} = {_toml(value)}" for key, value in plain.items() if value is not None)
    tflops = "\n".join(f"{dtype} = {_toml(value)}" for dtype, value in peaks.items())
    return f"""# Written by `stepsight calibrate`; each table says where its figures come from.
name = {json.dumps(name)}
gpus_per_node = {ranks}
nodes = 1

[gpu]
{figures}
aliases = {json.dumps(list(aliases))}

[gpu.peak_tflops]
{tflops}

[link]
kind = "{"loopback" if synchronous else "measured"}"
gbps = {gbps:.4f}
latency_us = {small:.1f}
source = "{ABOUT}"

[host]
name = "calibrated"
synchronous = {"true" if synchronous else "false"}
cores = {os.cpu_count() or 1}
source = "{ABOUT}"

[contention]
compute_under_comm = {contention.compute_under_comm}
comm_under_compute = {contention.comm_under_compute}
lookups_forward = {contention.lookups_forward}
lookups_backward = {contention.lookups_backward}
source = "{ABOUT}"
"""


def _toml(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


_CONSTANTS = area("calibrate")
NOISY = _CONSTANTS.number("NOISY")


def build(journal: Journal, folder: Path, name: str, device: str, ranks: int) -> dict[str, Any]:
    """Write the platform folder from the samples; what there is to say about it."""
    samples: dict[str, Sequence[Mapping[str, Any]]] = {}
    for sample in journal.samples:
        samples.setdefault(sample["stage"], []).append(sample)  # type: ignore[attr-defined]
    fitted = fit_samples(samples, device)
    notes = _notes(samples, fitted.repeat, device, ranks)
    with drafted(folder) as draft:
        write_folder(draft, name, device, ranks, fitted, NOTHING_KNOWN, notes)
        platform = load_platform(draft)
        rehearsals = [
            Rehearsal.of(
                parse_workload(dict(r["document"]), r["name"]), step_us(r["steps_us"]), platform, device
            )
            for r in _pooled(samples.get(REHEARSAL, ()))
        ]
        in_step = find_factors(rehearsals, platform)
        write_folder(draft, name, device, ranks, fitted, in_step, notes)
    return {
        **notes,
        "in_step": in_step.factors,
        "rehearsal_spread": round(in_step.spread, 4),
        "fitted": fitted,
    }


def _pooled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per workload, with the blocks of all its passes."""
    passes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        passes.setdefault(row["name"], []).append(row)
    return [
        {**members[0], "steps_us": [block for r in members for block in r["steps_us"]]}
        for members in passes.values()
    ]


def _notes(
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    repeat: Mapping[str, float],
    device: str,
    ranks: int,
) -> dict[str, Any]:
    """How quiet the machine was, in figures."""
    rehearsed = _pooled(samples.get(REHEARSAL, ()))
    blocks = [[np.log(step_us([b])) for b in r["steps_us"]] for r in rehearsed]
    step = float(np.median([np.std(b) for b in blocks])) if blocks else 0.0
    states = list(samples.get(NOISE, ()))
    stolen = 0.0
    if len(states) >= 2 and "ticks" in states[0]:
        ticks = states[-1]["ticks"] - states[0]["ticks"]
        stolen = (states[-1]["stolen"] - states[0]["stolen"]) / max(ticks, 1)
    kernel = repeat.get("kernels", 0.0)
    return {
        "device": device,
        "ranks": ranks,
        "date": time.strftime("%Y-%m-%d"),
        "samples": {stage: len(rows) for stage, rows in samples.items() if stage != NOISE},
        "kernel_repeat_error": kernel,
        "step_repeat_error": round(step, 4),
        "load_at_start": states[0]["load"] if states else 0.0,
        "stolen_share": round(stolen, 4),
        "noisy": bool(kernel > NOISY or step > NOISY or stolen > 0.02),
    }


def cpu_spec(machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """One rank's share of this machine: a single core at a nominal clock, and its part of the memory."""
    return GpuSpec(
        name=_cpu_name(), vendor=host_platform.machine(), architecture="cpu", sms=1, clock_mhz=1000.0,
        memory_gb=max(machine_memory_bytes() / BYTES_PER_GB / ranks, 0.1), memory_gbps=machine.memory_gbps,
        l2_mb=max(detect_caches(), default=2.0**20) / 2**20, l2_gbps=4 * machine.memory_gbps,
        peak_tflops={"fp32": machine.gflops / 1e3}, pcie_gbps=machine.memory_gbps, launch_us=0.0,
        kernel_gap_us=0.0, source=ABOUT,
    )  # fmt: skip


def cuda_spec(name: str, memory_bytes: float) -> GpuSpec:
    """The catalogue's GPU of this name; memory as the driver of this board states it."""
    entry = find_gpu(name)
    if entry is None:
        fix = "add a TOML file for it (docs/platforms.md) and calibrate again"
        raise InputError(name, "is not in the catalogue", fix)
    source = f"{entry.gpu.source}; memory: the driver"
    return replace(entry.gpu, memory_gb=memory_bytes / BYTES_PER_GB, source=source)


def processor_spec(device: str, machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """What one rank computes on."""
    if device == "cpu":
        return cpu_spec(machine, ranks)
    import torch

    properties = torch.cuda.get_device_properties(0)
    return cuda_spec(properties.name, properties.total_memory)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return host_platform.processor() or "cpu"
