"""The stride of a forward convolution whose scalars and result a trace does not hold: by its launch grid."""

from __future__ import annotations

import re
from math import ceil, log, prod

from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.launch_grid import grid_blocks

_TILE = re.compile(r"(?:tilesize|_bt|_)(\d{2,3})x(\d{2,3})(?!\d)")
_LOGARITHMS = re.compile(r"(?:im|ex)plicit_convolve_sgemm<\w+, (?:float|int), \d+, (\d), (\d),")
"""cuDNN's older kernels name the binary logarithms of a tile's pixels and channels."""
_PERSISTENT = re.compile(r"sm90_|sm100_|warpgroup", re.IGNORECASE)
"""Kernels that stay on the GPU and take tile after tile: their grids count multiprocessors."""
_STRIDES = (1, 2, 4)
_SLACK = 1.3
"""A grid speaks for a stride if its tiles cover the result to within this factor."""


def stride_by_grid(event: Event, image: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, int]:
    """Stride and padding: those whose result the grid's tiles cover; else the usual ones.

    A window with an even side keeps no size at stride one: it cuts the image into patches.
    """
    side = weight[2]
    patches = side % 2 == 0
    padding = 0 if patches else (side - 1) // 2
    usual = side if patches else 1
    tile = _tile(event.name)
    if tile is None or not event.grid():
        return usual, padding
    a, b = tile
    covered = prod(grid_blocks(event)) * a * b
    found, least = usual, log(_SLACK)
    for stride in sorted({*_STRIDES, usual}):
        high, wide = ((n + 2 * padding - side) // stride + 1 for n in image[2:4])
        pixels = max(image[0] * high * wide, 1)
        for rows, cols in ((a, b), (b, a)):
            needed = ceil(pixels / rows) * rows * ceil(weight[0] / cols) * cols
            off = abs(log(covered / needed))
            if off < least:
                found, least = stride, off
    return found, padding


def _tile(kernel: str) -> tuple[int, int] | None:
    """The sides of a block's tile by the kernel's name; None where the name or the grid does not tell."""
    named = _LOGARITHMS.search(kernel)
    if named:
        return 2 ** int(named[1]), 2 ** int(named[2])
    found = None if _PERSISTENT.search(kernel) else _TILE.search(kernel)
    return (int(found[1]), int(found[2])) if found else None
