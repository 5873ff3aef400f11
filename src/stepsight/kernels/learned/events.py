"""What a pair of CUDA events around one operator reads in addition to its kernel: the host's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray

SPLIT_TILE = 128
"""Side of the output tiles by which a product's thread blocks are counted."""


@dataclass(frozen=True, slots=True)
class EventPath:
    """What events add to a kernel's time.

    ``added_us`` passes between the first event and the kernel's start; no reading falls below
    ``floor_us``, the host's own time for the operator. ``stretch``: how much longer kernels took on the
    measured board than its clocks allow, where its table ran throttled.

    Deep products with few output tiles are split along k: a second kernel adds the parts, and the host takes
    ``second_us`` longer: from a k of ``split_depth``, and of ``split_slope`` more for each output tile per
    multiprocessor.
    """

    added_us: float = 0.0
    floor_us: float = 0.0
    stretch: float = 1.0
    second_us: float = 0.0
    split_depth: float = 0.0
    split_slope: float = 0.0

    def reading_us(self, kernel_us: FloatArray, second: FloatArray | float = 0.0) -> FloatArray:
        """What the events would read around kernels that take ``kernel_us``.

        ``second``: 1 for operators that launch a second kernel, else 0 (see `second_launch`).
        """
        return np.maximum(self.stretch * kernel_us + self.added_us, self.floor_us + self.second_us * second)

    def unthrottled(self) -> EventPath:
        """The same host around a board that runs at its usual clocks."""
        return replace(self, stretch=1.0)

    def second_launch(self, dims: Mapping[str, FloatArray], sms: int) -> FloatArray | float:
        """1 for products that are split along k, else 0."""
        if self.second_us == 0 or "k" not in dims:
            return 0.0
        deepest = self.split_depth + self.split_slope * output_tiles(dims) / sms
        return np.asarray(dims["k"] > deepest, dtype=np.float64)


def output_tiles(dims: Mapping[str, FloatArray]) -> FloatArray:
    """Thread blocks of a product, one for each tile of its output."""
    tiles = np.ceil(dims["m"] / SPLIT_TILE) * np.ceil(dims["n"] / SPLIT_TILE) * np.maximum(dims["batch"], 1.0)
    return np.asarray(tiles)
