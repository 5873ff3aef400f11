"""A GPU from what its data sheet says: what is needed, and what can be filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.hardware.spec import ContentionSpec, GpuSpec, LinkSpec, PlatformSpec
from stepsight.inputs import check_limit

C = area("hardware")

REQUIRED: Mapping[str, str] = {
    "name": "what you call it",
    "sms": "streaming multiprocessors (compute units)",
    "clock_mhz": "boost clock in MHz",
    "memory_gb": "memory in GB",
    "memory_gbps": "memory bandwidth in GB/s",
    "peak_tflops.fp32": "dense fp32 peak in TFLOP/s",
}
"""The figures that every data sheet has."""
PCIE_GBPS = 31.5
"""PCIe 4.0 x16, GB/s in one direction, raw."""
GBIT_PER_GBYTE = 8.0


def complete_gpu(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The GPU's fields with what the data sheet leaves out filled in; all missing ones are named at once."""
    missing = [f"{key} ({meaning})" for key, meaning in REQUIRED.items() if not _has(table, key)]
    if missing:
        raise InputError(where, f"lacks {', '.join(missing)}", "take them from the data sheet")
    filled: dict[str, Any] = {
        "vendor": "nvidia",
        "architecture": "unknown",
        "l2_mb": _number(table["sms"]) * C.L2_MB_PER_SM,
        "l2_gbps": _number(table["memory_gbps"]) * C.L2_OVER_MEMORY,
        "pcie_gbps": PCIE_GBPS,
        "source": "given",
    }
    return {**filled, **table}


def read_link(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A link's fields; its rate in GB/s (``gbps``), or in Gb/s as NICs are sold (``gbit_per_s``)."""
    fields = dict(table)
    if "gbit_per_s" in fields:
        if "gbps" in table:
            raise InputError(where, "gives gbps and gbit_per_s", "keep one: gbps is GB/s, gbit_per_s is Gb/s")
        fields["gbps"] = _number(fields.pop("gbit_per_s")) / GBIT_PER_GBYTE
    return fields


def _has(table: Mapping[str, Any], key: str) -> bool:
    head, _, rest = key.partition(".")
    inner = table.get(head)
    if not rest:
        return inner is not None
    return isinstance(inner, Mapping) and rest in inner


def _number(value: Any) -> float:
    """The value where it is a number; what it should be is checked with all other fields."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < float("inf") else 1.0


LEAST = 1e-6
RANGES: Mapping[str, tuple[float, float]] = {
    "sms": (1, 1e5), "clock_mhz": (LEAST, 1e5), "memory_gb": (LEAST, 1e5), "memory_gbps": (LEAST, 1e6),
    "l2_mb": (LEAST, 1e6), "l2_gbps": (LEAST, 1e7), "pcie_gbps": (LEAST, 1e4),
    "shared_kb_per_sm": (LEAST, 1e6), "sector_bytes": (1, 4096), "l2_copies": (1, 64),
    "launch_us": (0, 1e4), "kernel_gap_us": (0, 1e4),
    "power_w": (1, 1e5), "speed": (LEAST, 1.3), "peak_tflops": (LEAST, 1e6), "gbps": (0, 1e5),
    "latency_us": (0, 1e6), "host.speed": (1e-3, 1e3), "cores": (0, 1e5), "contention": (1e-2, 1e2),
}  # fmt: skip
"""What hardware can have, in the units of the specifications; far beyond any board of today. ``speed`` tells
a board from others of its kind: beyond 1.3 kernels would run above the peak."""


def check_platform(spec: PlatformSpec, where: str) -> PlatformSpec:
    """The platform itself, or an error that names every figure that cannot be."""
    check_limit(spec.ranks, "RANKS", where, "its number of GPUs")
    wrong = [f"gpu.{problem}" for problem in gpu_problems(spec.gpu)]
    wrong += _link_problems("link", spec.link, needed=spec.gpus_per_node > 1)
    if spec.nic is not None:
        wrong += _link_problems("nic", spec.nic, needed=spec.nodes > 1)
    elif spec.nodes > 1:
        wrong.append("nic: is missing, and there are several nodes")
    wrong += _outside("host.speed", spec.host.speed, "host.speed")
    wrong += _outside("host.cores", spec.host.cores, "cores")
    for name in CONTENTION:
        wrong += _outside(f"contention.{name}", getattr(spec.contention, name), "contention")
    if wrong:
        raise InputError(where, "; ".join(wrong), "take the figures from the data sheets")
    return spec


CONTENTION = tuple(f.name for f in fields(ContentionSpec) if f.name != "source")


def gpu_problems(gpu: GpuSpec) -> list[str]:
    """Every figure of a GPU that no hardware has."""
    wrong = []
    for name in RANGES:
        value = getattr(gpu, name, None)
        if value is not None and name != "peak_tflops":
            wrong += _outside(name, value, name)
    for dtype, tflops in gpu.peak_tflops.items():
        wrong += _outside(f"peak_tflops.{dtype}", tflops, "peak_tflops")
    return wrong if "fp32" in gpu.peak_tflops else [*wrong, "peak_tflops.fp32 is missing"]


def _link_problems(name: str, link: LinkSpec, *, needed: bool) -> list[str]:
    wrong = _outside(f"{name}.gbps", link.gbps, "gbps") + _outside(
        f"{name}.latency_us", link.latency_us, "latency_us"
    )
    if needed and link.gbps == 0:
        wrong.append(f"{name}.gbps is 0, must be above zero")
    return wrong


def _outside(field: str, value: float, kind: str) -> list[str]:
    low, high = RANGES[kind]
    return [] if low <= value <= high else [f"{field} is {value:g}, must be from {low:g} to {high:g}"]
