"""fp32 products from first principles: whole tiles of the output, in whole waves over the multiprocessors.

A thread block computes one tile and walks the whole of k; what hangs over the edge of the output is computed,
too. Libraries differ in the tiles they have for batched products: with one tile of 128 × 128 a product with
64 columns takes as long as one with 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.machine import Machine


@dataclass(frozen=True, slots=True)
class Tile:
    """Output columns and rows that a thread block computes; ``reach``: its share of a large tile's pace."""

    columns: int
    rows: int
    reach: float = 1.0


ONE_LARGE = (Tile(128, 128),)
SEVERAL = (
    Tile(128, 128), Tile(64, 128, 0.9), Tile(128, 64, 0.9), Tile(64, 64, 0.8), Tile(32, 128, 0.7),
    Tile(128, 32, 0.7), Tile(32, 64, 0.65), Tile(64, 32, 0.65), Tile(32, 32, 0.55),
)  # fmt: skip
"""A library with a tile for every shape picks the one that ends first. Smaller tiles read more for a FLOP."""

TILES: Mapping[str, tuple[Tile, ...]] = {
    "pascal": (Tile(128, 64),),
    "ampere": ONE_LARGE,
    "ada": ONE_LARGE,
}
"""Tiles of batched products by generation, where they are few. Ampere: every batched fp32 product in two
traces of A100s runs ``ampere_sgemm_128x128`` (public traces); Ada by the same library: products with
64 and 80 columns on L4 take equally long (fp32 operators). Pascal: ``maxwell_sgemm_128x64``."""

SHARE = 0.925
"""Of peak, for a large tile: 0.95, 0.925 and 0.90 fit A100, P100 and V100 best (fp32 GEMMs)."""
MEMORY = 0.8
"""Share of bandwidth."""
MEETING = 2.0
"""Exponent with which arithmetic and memory add up: a block loads before it computes and stores after."""
START_US = 2.0
STEP = 8
"""Elements of k at a time."""
FULL = 128 * 128
"""Outputs that a multiprocessor works on at a time: one large tile, or several small ones."""


def tiled_us(batch: Batch, machine: Machine) -> FloatArray:
    """Batched products, with the tile that ends first."""
    b, m, n, k = (np.maximum(batch.dims[key], 1.0) for key in ("batch", "m", "n", "k"))
    at_once = machine.sms * FULL
    best = np.full(len(batch), np.inf)
    for tile in TILES.get(machine.architecture, SEVERAL):
        outputs = b * np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * (tile.rows * tile.columns)
        best = np.minimum(best, np.ceil(outputs / at_once) * at_once / tile.reach)
    arithmetic = 2 * best * np.ceil(k / STEP) * STEP / (machine.tflops * 1e6 * SHARE)
    memory = batch.bytes / (machine.memory_gbps * 1e3 * MEMORY)
    return np.asarray(START_US + (arithmetic**MEETING + memory**MEETING) ** (1 / MEETING))
