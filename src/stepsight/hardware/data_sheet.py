"""A GPU from what its data sheet says: what is needed, and what can be filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsight.errors import InputError
from stepsight.hardware.spec import ContentionSpec, GpuSpec, HostSpec, LinkSpec, PlatformSpec
from stepsight.limits import check

REQUIRED: Mapping[str, str] = {
    "name": "what you call it",
    "sms": "streaming multiprocessors (compute units)",
    "clock_mhz": "boost clock in MHz",
    "memory_gb": "memory in GB",
    "memory_gbps": "memory bandwidth in GB/s",
    "peak_tflops.fp32": "dense fp32 peak in TFLOP/s",
}
"""The figures that every data sheet has."""
L2_OVER_MEMORY = 2.4
"""L2 bandwidth over memory bandwidth: the median of the catalogue's GPUs (1.1 to 7.2)."""
L2_MB_PER_SM = 0.1
"""L2 size per multiprocessor in MB: the median of the catalogue's GPUs (0.07 to 0.85)."""
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
        "l2_mb": _number(table["sms"]) * L2_MB_PER_SM,
        "l2_gbps": _number(table["memory_gbps"]) * L2_OVER_MEMORY,
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


POSITIVE = ("sms", "clock_mhz", "memory_gb", "memory_gbps", "l2_mb", "l2_gbps", "pcie_gbps",
            "shared_kb_per_sm", "sector_bytes", "speed", "l2_copies")  # fmt: skip
NOT_NEGATIVE = ("launch_us", "kernel_gap_us")
FASTEST = 1.3
"""``gpu.speed`` tells a board from others of its kind, which differ by less; beyond it kernels would
run above the peak."""
LEAST, MOST = 1e-6, 1e9
"""No figure of a data sheet, in the units of `GpuSpec` and `LinkSpec`, comes near either."""


def check_platform(spec: PlatformSpec, where: str) -> PlatformSpec:
    """The platform itself, or an error that names every figure that cannot be."""
    check(spec.ranks, "RANKS", where, "its number of GPUs")
    wrong = [f"gpu.{problem}" for problem in gpu_problems(spec.gpu)]
    wrong += _link_problems("link", spec.link, needed=spec.gpus_per_node > 1)
    if spec.nic is not None:
        wrong += _link_problems("nic", spec.nic, needed=spec.nodes > 1)
    elif spec.nodes > 1:
        wrong.append("nic: is missing, and there are several nodes")
    wrong += _host_problems(spec.host) + _contention_problems(spec.contention)
    if wrong:
        raise InputError(where, "; ".join(wrong), "take the figures from the data sheets")
    return spec


def gpu_problems(gpu: GpuSpec) -> list[str]:
    """Every figure of a GPU that must be above zero and is not."""
    wrong = [f"{name} is {getattr(gpu, name):g}, must be above zero" for name in POSITIVE
             if not getattr(gpu, name) >= LEAST]  # fmt: skip
    wrong += [f"{name} is {getattr(gpu, name):g}, must not be negative" for name in NOT_NEGATIVE
              if not getattr(gpu, name) >= 0]  # fmt: skip
    wrong += [f"{name} is {getattr(gpu, name)}, more than any hardware has" for name in
              (*POSITIVE, *NOT_NEGATIVE) if getattr(gpu, name) > MOST]  # fmt: skip
    if gpu.power_w is not None and not 1.0 <= gpu.power_w <= MOST:
        wrong.append(f"power_w is {gpu.power_w:g} W, must be a board's power limit")
    if gpu.speed > FASTEST:
        wrong.append(
            f"speed is {gpu.speed:g}, but boards of one kind differ by less than {FASTEST:g} times: "
            "change the figures (peak_tflops, memory_gbps)"
        )
    if "fp32" not in gpu.peak_tflops:
        wrong.append("peak_tflops.fp32 is missing")
    wrong += [f"peak_tflops.{dtype} is {tflops:g}, must be above zero and real" for dtype, tflops in
              gpu.peak_tflops.items() if not LEAST <= tflops <= MOST]  # fmt: skip
    return wrong


def _link_problems(name: str, link: LinkSpec, *, needed: bool) -> list[str]:
    wrong = []
    if link.gbps < 0 or (needed and link.gbps < LEAST):
        wrong.append(f"{name}.gbps is {link.gbps:g} GB/s, must be above zero")
    if link.latency_us < 0:
        wrong.append(f"{name}.latency_us is {link.latency_us:g}, must not be negative")
    if max(link.gbps, link.latency_us) > MOST:
        wrong.append(f"{name} has a figure that is more than any hardware has")
    return wrong


def _host_problems(host: HostSpec) -> list[str]:
    wrong = [] if LEAST <= host.speed <= MOST else [f"host.speed is {host.speed:g}, must be above zero"]
    return wrong if host.cores >= 0 else [*wrong, f"host.cores is {host.cores}, must not be negative"]


def _contention_problems(contention: ContentionSpec) -> list[str]:
    names = ("compute_under_comm", "comm_under_compute", "lookups_forward", "lookups_backward",
             "compute_beside_compute")  # fmt: skip
    return [f"contention.{name} is {getattr(contention, name):g}, must be above zero" for name in names
            if not getattr(contention, name) > 0]  # fmt: skip
