"""What the host's own thread spends on data: a loader that joins, reduces and pins a batch."""

from __future__ import annotations

from stepsight.overheads.constants import DIVIDE_NS, HOST_GBPS


def host_work_us(bytes_: float, divisions: float) -> float:
    """µs for so many bytes read and written and so many 64-bit divisions, one thread."""
    if not bytes_ and not divisions:
        return 0.0
    return bytes_ / (HOST_GBPS * 1e3) + divisions * DIVIDE_NS / 1e3
