"""What the host's own thread spends on data: a loader that joins, reduces and pins a batch."""

from __future__ import annotations

from stepsight.overheads.constants import DIVIDE_NS, HOST_GBPS, OLD_DIVIDE_NS

OLD_HOSTS = ("v100", "recommendation")
"""Eras of hosts (`Overheads.host`) whose processors divide slowly: Broadwell to Cascade Lake."""


def host_work_us(host: str, bytes_: float, divisions: float) -> float:
    """µs for so many bytes read and written and so many 64-bit divisions, one thread."""
    if not bytes_ and not divisions:
        return 0.0
    divide_ns = OLD_DIVIDE_NS if host.startswith(OLD_HOSTS) else DIVIDE_NS
    return bytes_ / (HOST_GBPS * 1e3) + divisions * divide_ns / 1e3
