"""A GPU from what its data sheet says: what is needed, and what can be filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsight.errors import InputError

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
