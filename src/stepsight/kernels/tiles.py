"""Products from first principles: whole tiles of the output, in whole waves over the multiprocessors.

A thread block computes one tile and walks the whole of k; what hangs over the edge of the output is computed,
too. Libraries differ in the tiles they have for batched fp32 products: with one tile of 128 × 128 a product
with 64 columns takes as long as one with 128. Batched products in half precision, as attention written out in
eager mode has, are narrow and mostly bound by memory. Which kernel a library picks for them differs from chip
to chip; the best it has does not: constants of products that A100's library serves well carry to GH200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.machine import Machine
from stepsight.kernels.stream_costs import meet

C = area("kernels")


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

SHARE = C.number("TILED_GEMM_SHARE")
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
    memory = batch.bytes / (machine.memory_gbps * 1e3 * C.TILED_GEMM_BANDWIDTH)
    return np.asarray(START_US + (arithmetic**MEETING + memory**MEETING) ** (1 / MEETING))


TILE = 128
"""Side of the output tiles of large products; a narrow output takes a tile of 32 or 64."""
NARROW = (32.0, 64.0)
HALF_STEP = 32
"""Elements of k that a thread block takes at a time."""


@dataclass(frozen=True, slots=True)
class BatchedConstants:
    """Shares of memory bandwidth and of tensor-core peak that large batched products reach; start in µs."""

    memory: float
    matrix: float
    start_us: float


BATCHED = BatchedConstants(0.82, 0.74, 6.0)
"""Fitted by `lab/fit/kernels/half.py` on A100's products with a long reduction (probabilities × values,
gradients of scores; Megatron's operators). With a short one A100's library takes up to twice as long."""
BATCHED_SPREAD = C.number("BATCHED_SPREAD")


def padded(side: FloatArray) -> FloatArray:
    """What whole tiles make of one side of the output."""
    whole = np.ceil(side / TILE) * TILE
    for narrow in reversed(NARROW):
        whole = np.where(side <= narrow, narrow, whole)
    return np.asarray(whole)


def batched_us(
    batch: Batch, spec: GpuSpec, share: float = 1.0, constants: BatchedConstants = BATCHED
) -> FloatArray:
    """The time from first principles. ``share``: what the board keeps up of its tensor cores' peak."""
    d = batch.dims
    outputs = d["batch"] * padded(d["m"]) * padded(d["n"])
    waves = outputs / (TILE * TILE * spec.sms)
    depth = np.ceil(d["k"] / HALF_STEP) * HALF_STEP
    peak = spec.peak_flops(batch.dtype) / 1e6 * share * constants.matrix
    matrix = 2 * outputs * depth / peak * np.ceil(waves) / waves
    memory = batch.bytes / (spec.memory_gbps * 1e3 * constants.memory)
    return np.asarray(constants.start_us + meet(memory, matrix))
