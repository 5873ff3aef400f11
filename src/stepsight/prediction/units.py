"""Times and sizes as people read them, always with their unit."""

from __future__ import annotations


def time(us: float) -> str:
    """12.3 µs, 4.56 ms, 7.89 s."""
    size = abs(us)
    if size < 1e3:
        return f"{us:.1f} µs"
    return f"{us / 1e3:.2f} ms" if size < 1e6 else f"{us / 1e6:.2f} s"


def size(count: float) -> str:
    """1.50 KB, 2.00 GB: decimal, as bandwidths are."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def share(fraction: float) -> str:
    """12.3 %."""
    return f"{100 * fraction:.1f} %"


def change(fraction: float, digits: int = 0) -> str:
    """+12 %, −3 %: by how much something is more or less than another."""
    return f"{100 * fraction:+.{digits}f} %".replace("-", "−")


def rate(value: float) -> str:
    """12.3, 4,567: a number of things, to three digits below a thousand."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
