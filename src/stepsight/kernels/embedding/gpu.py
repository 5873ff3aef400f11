"""From sums of columns to the time of a fused lookup on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, log2
from pathlib import Path

import msgspec
import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.traffic import CacheView
from stepsight.kernels.stream_costs import ONE_BLOCK_KEYS
from stepsight.kernels.streams import cached_streams, measured_stream
from stepsight.tables.lookup import INDEX_ADD, SORTED

C = area("kernels")

SHIPPED = Path(__file__).parents[1] / "artefacts" / "embedding_gpu.json"

RADIX_BITS = (8, 16, 24, 32)
"""A pass of CUB's radix sort takes eight bits of the key, so that a key of more needs one more."""
KEY_BYTES, INFO_BYTES = 8, 4
"""FBGEMM sorts rows numbered through all tables, with the bag that asked for them."""
ARRANGED_BYTES = 52
"""Of a lookup besides the sort: numbering rows reads the index and writes key and bag (20), finding runs
reads keys and writes rows and lengths (20), summing lengths up reads and writes them (8), seeking long ones
reads them (4)."""
ARRANGING_KERNELS, SORTING_KERNELS = 5, 2
"""Small kernels of a backward: runs, their sums, what both begin with, and the search for long runs; and the
histogram of the keys and its sums where a sort takes several passes."""

BLOCKS_PER_SM, BLOCK_DIM = 2.0, 128
"""Blocks of 1,024 threads on an SM with rows of at most this many values: 32 registers a thread in traces of
V100 and A100; with twice the values 42, which leave room for one."""

SORT_PASSES_OF_A_CACHE, CACHE_KERNELS = 4, 12
"""Of seeking rows in a cache: passes of each sort (keys of up to 32 bits), and small kernels."""
TAG_BYTES = 256
"""A set of FBGEMM's cache has 32 places, each with a tag of eight bytes."""
SSD_READS_PER_S, SSD_WRITES_PER_S = C.numbers("SSD_PAGES_PER_S")
INTEGER_LANES = 64
"""32-bit integer instructions per cycle of an SM (white papers of V100, A100 and H100)."""
INT32_VALUES = 2.0**31
"""Values of a matrix up to which ATen indexes by 32 bits."""
VALUE_INSTRUCTIONS = C.numbers("VALUE_INSTRUCTIONS")
ROUNDING = 1e-6
"""Residue of taking a power and its root."""


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """What the specification does not say.

    Those without a default are fitted (`python -m lab fit embedding`). Efficiencies are shares of a
    V100's bandwidths, by the data sheet; other chips reach so much less of theirs as plain streams
    do. Cycles are those of a warp: to set up a bag, to fetch one more row of it that a cache holds,
    ``miss_cycles`` more if it comes from memory.

    A sorted backward first arranges the indices: small kernels of ``small_us``, passes of a sort of
    ``pass_us`` and their bytes at ``sort_efficiency``; to number the rows a warp takes 32 bags one after the
    other, ``number_cycles`` for each 32 lookups of a bag. Then it folds gradients and updates rows: kernels
    that take ``update_us`` however little they do (a second one where rows have many lookups), ``run_cycles``
    of a warp for each row besides its lookups, or ``block_cycles`` of a block, whose warps add up their sums.

    ``legacy_*``: the table-batched kernels of 2020, whose backward updates rows one by one:
    ``scattered_bytes`` is the traffic that an update far from the last ones is worth besides its own,
    ``contended_cycles`` passes between two updates of the same row.

    The others are set: 64 warps fit on an SM (V100, A100 and H100 data sheets), with the registers of
    FBGEMM's kernels ``resident_warps`` (75 % occupancy in three traces, for rows of up to 256 values). Grids
    have at most ``grid_blocks_per_sm`` blocks (FBGEMM's limit; forwards in traces until 2023 have none).
    Besides the headers of its packets a bus spends 7 % on flow control and acknowledgements: kernels read
    12.3 of 15.75 GB/s of PCIe 3.0 x16 in 128-byte lines (Min et al., EMOGI, VLDB 2020), and headers leave
    84 % of the wire.
    ``spread``, ``backward_spread`` and ``legacy_spread`` (the kernels of 2020, whose indices are known) hold
    nine of ten of the measured kernels with their source left out of the fit or outside it (34, 18 and 24
    kernels).
    """

    read_efficiency: float
    write_efficiency: float
    start_us: float
    legacy_bag_cycles: float
    legacy_row_cycles: float
    scattered_bytes: float
    contended_cycles: float
    bag_cycles: float
    row_cycles: float
    miss_cycles: float
    small_us: float
    pass_us: float
    number_cycles: float
    sort_efficiency: float
    update_us: float
    run_cycles: float
    block_cycles: float
    l2_efficiency: float = 1.0
    bus_efficiency: float = 0.93
    warps_per_sm: float = 64.0
    resident_warps: float = 48.0
    grid_blocks_per_sm: float = 64.0
    spread: float = 0.16
    backward_spread: float = 0.18
    legacy_spread: float = 0.11


@lru_cache(maxsize=1)
def shipped_coefficients() -> GpuCoefficients:
    """Those that come with stepsight."""
    fitted: dict[str, float] = msgspec.json.decode(SHIPPED.read_bytes())["coefficients"]
    return GpuCoefficients(**fitted)


UNCALIBRATED_CPU = GpuCoefficients(
    read_efficiency=0.5, write_efficiency=0.4, l2_efficiency=0.3, start_us=20.0, warps_per_sm=1.0,
    resident_warps=1.0, bag_cycles=12.0, row_cycles=10.0, miss_cycles=0.0, small_us=2.0, pass_us=0.0,
    number_cycles=0.0, sort_efficiency=inf, update_us=8.0, run_cycles=80.0, block_cycles=80.0,
    legacy_bag_cycles=12.0, legacy_row_cycles=10.0, scattered_bytes=0.0, contended_cycles=0.0, spread=0.6,
)  # fmt: skip
"""A stated guess for a CPU that nobody has measured, from one core of an AMD EPYC of 2023 with torch's
embedding bag: 20 µs a call, 4 ns a bag, 4 ns a lookup besides its traffic, 30 ns to update a row."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """Joins summed columns into times for one GPU. ``memory_gbps``: the data sheet's, less what plain streams
    fall short of the V100's share of theirs."""

    spec: GpuSpec
    coefficients: GpuCoefficients
    memory_gbps: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_gbps", _memory_gbps(self.spec))

    @property
    def cache(self) -> CacheView:
        spec, bags = self.spec, self.spec.sms * self.coefficients.warps_per_sm
        l2_bytes = spec.l2_mb * 2**20 / spec.l2_copies
        near_bytes = spec.shared_kb_per_sm * 2**10
        blocks = spec.sms * self.coefficients.grid_blocks_per_sm
        return CacheView(l2_bytes, spec.sector_bytes, bags, near_bytes, spec.sms, blocks)

    def forward_us(self, sums: FloatArray, *, update: str = SORTED) -> FloatArray:
        """A fused forward: FBGEMM's, or the simpler gathers of stacks that do not sort."""
        c = self.coefficients
        memory = self._memory_us(sums, c.read_efficiency)
        latency = self._latency_us(sums) if update == SORTED else self._legacy_latency_us(sums)
        parts = memory, self._cache_us(sums), latency, self._bus_us(sums)
        # Empty bags are set up and written, too.
        even = self._joined(sums, traffic.WARP_BAGS, c.start_us, *parts)
        row_cycles = (c.row_cycles, c.miss_cycles) if update == SORTED else (c.legacy_row_cycles, 0.0)
        return self.fill_us(sums) + even + self._overhang_us(sums, even, *row_cycles)

    def _overhang_us(
        self, sums: FloatArray, even: FloatArray, row_cycles: float, miss_cycles: float
    ) -> FloatArray:
        """How far the longest bag, which begins at any time of the ``even`` kernel, reaches beyond its end:
        on average x² / 2e if it takes x < e longer than the mean bag, else x - e / 2."""
        mean, missed = _longest(sums, traffic.CHAIN), _longest(sums, traffic.MISS_CHAIN)
        a_row = row_cycles + miss_cycles * missed / np.maximum(mean, 1e-12)
        alone = C.IDLE_LATENCY * a_row / self.spec.clock_mhz
        beyond = np.maximum(_longest(sums, traffic.LONGEST) - mean, 0.0) * alone
        inside = np.minimum(beyond, even)
        return np.asarray(beyond - inside + inside * inside / np.maximum(2 * even, 1e-12))

    def fill_us(self, sums: FloatArray) -> FloatArray:
        """What a cache of rows in host memory takes before the lookup: its rows are numbered and sorted
        twice (distinct rows, then by set); a warp seeks each among the tags of its set, which each lane finds
        by a hash and a division; those that are missing are fetched in exchange for others, from host memory
        or from a drive."""
        c, lookups, sought = self.coefficients, sums[..., traffic.CACHED], sums[..., traffic.SOUGHT]
        passes = 2 * SORT_PASSES_OF_A_CACHE
        kernels = CACHE_KERNELS * c.small_us + passes * c.pass_us
        moved = lookups * (2 * ARRANGED_BYTES + passes * 2 * (KEY_BYTES + INFO_BYTES))
        stream = moved / (self.memory_gbps * 1e3 * c.sort_efficiency)
        tags = sought * TAG_BYTES / (self.memory_gbps * 1e3 * c.read_efficiency)
        instructions = sought * traffic.WARP_LANES * VALUE_INSTRUCTIONS[0]
        search = np.maximum(tags, instructions / (self.spec.sms * INTEGER_LANES) / self.spec.clock_mhz)
        fetched = sums[..., traffic.FILLED] / (self.spec.pcie_gbps * 1e3 * c.bus_efficiency)
        paged = sums[..., traffic.PAGES] * (1e6 / SSD_READS_PER_S + 1e6 / SSD_WRITES_PER_S)
        return np.where(lookups > 0, kernels + stream + search + fetched + paged, 0.0)

    def _bus_us(self, sums: FloatArray) -> FloatArray:
        """Rows read and written where they lie in host memory: the bus is full duplex."""
        wire = np.maximum(sums[..., traffic.BUS_DOWN], sums[..., traffic.BUS_UP])
        return np.asarray(wire / (self.spec.pcie_gbps * 1e3 * self.coefficients.bus_efficiency))

    def backward_us(self, sums: FloatArray, *, update: str = SORTED) -> FloatArray:
        """A fused backward and update; without a sort every lookup reads and writes its row."""
        if update == SORTED:
            return self.arrange_us(sums) + self.update_us(sums)
        c = self.coefficients
        memory = self._memory_us(sums, c.write_efficiency)
        memory = memory + sums[..., traffic.SCATTERED] * c.scattered_bytes / (self.memory_gbps * 1e3)
        contended = sums[..., traffic.HOTTEST] * c.contended_cycles / self.spec.clock_mhz
        latency = self._legacy_latency_us(sums)
        start = c.start_us + contended
        adding = self._adding_us(sums) if update == INDEX_ADD else np.zeros_like(latency)
        return self._joined(sums, traffic.LOOKUPS, start, memory, self._cache_us(sums), latency, adding)

    def _adding_us(self, sums: FloatArray) -> FloatArray:
        """index_add_ finds the place of every value by a division, of 64 bits in matrices that need them."""
        wide = sums[..., traffic.TABLE_VALUES] > INT32_VALUES
        instructions = sums[..., traffic.VALUES] * np.where(wide, *VALUE_INSTRUCTIONS)
        return np.asarray(instructions / (self.spec.sms * INTEGER_LANES) / self.spec.clock_mhz)

    def arrange_us(self, sums: FloatArray) -> FloatArray:
        """What a sorted backward does before it touches a gradient: number the rows, sort, find the runs."""
        c = self.coefficients
        lookups, keys = sums[..., traffic.LOOKUPS], sums[..., traffic.SORTED]
        passes = 1 + sum((sums[..., traffic.ROWS] > 2.0**bits).astype(np.float64) for bits in RADIX_BITS)
        several = SORTING_KERNELS * c.small_us + passes * c.pass_us
        sort = np.where(lookups <= ONE_BLOCK_KEYS, c.pass_us, several) * keys / np.maximum(lookups, 1.0)
        turns = traffic.WARP_LANES * np.ceil(_longest(sums, traffic.CHAIN) / traffic.WARP_LANES - ROUNDING)
        number = c.start_us + turns * c.number_cycles / self.spec.clock_mhz
        moved = lookups * ARRANGED_BYTES + keys * (KEY_BYTES + passes * 2 * (KEY_BYTES + INFO_BYTES))
        stream = moved / (self.memory_gbps * 1e3 * c.sort_efficiency)
        return np.where(lookups > 0, ARRANGING_KERNELS * c.small_us + number + sort + stream, 0.0)

    def update_us(self, sums: FloatArray) -> FloatArray:
        """Fold the gradients of each run and update its row: a warp a short run, a block a long one."""
        c = self.coefficients
        long = sums[..., traffic.LONG_RUNS]
        work = self._work_us(sums, c.resident_warps, c.run_cycles, c.row_cycles, c.miss_cycles)
        work = work + self._blocks_us(sums)
        any_long = -np.expm1(-long)
        start = c.update_us * (1 + any_long) + c.small_us * (1 - any_long)
        # Gradients are read alone; rows and their state are written back.
        written = sums[..., traffic.UPDATED] * (1 / c.write_efficiency - 1 / c.read_efficiency)
        memory = self._memory_us(sums, c.read_efficiency) + written / (self.memory_gbps * 1e3)
        parts = memory, self._cache_us(sums), work, self._bus_us(sums)
        return self._joined(sums, traffic.LOOKUPS, start, *parts)

    def _blocks_us(self, sums: FloatArray) -> FloatArray:
        """Blocks of 1,024 threads share an SM by their registers, and take as long as each of their warps."""
        c = self.coefficients
        cycles = sums[..., traffic.BLOCK_RUNS] * c.block_cycles
        cycles = cycles + sums[..., traffic.BLOCK_LOOKUPS] * c.row_cycles
        cycles = cycles + sums[..., traffic.BLOCK_MISSES] * c.miss_cycles
        widest = _root(sums[..., traffic.WIDEST], traffic.WIDTH_POWER)
        room = np.clip(BLOCKS_PER_SM * BLOCK_DIM / np.maximum(widest, 1.0), 1.0, BLOCKS_PER_SM)
        return np.asarray(cycles / (self.spec.sms * room) / self.spec.clock_mhz)

    def _memory_us(self, sums: FloatArray, efficiency: float) -> FloatArray:
        return np.asarray(sums[..., traffic.DRAM] / (self.memory_gbps * 1e3 * efficiency))

    def _cache_us(self, sums: FloatArray) -> FloatArray:
        bandwidth = self.spec.l2_gbps * 1e3 * self.coefficients.l2_efficiency
        return np.asarray(sums[..., traffic.L2] / bandwidth)

    def _work_us(
        self, sums: FloatArray, warps: float, bag_cycles: float, row_cycles: float, miss_cycles: float = 0.0
    ) -> FloatArray:
        """Little's law: the warps that fit take bags in turn, and a bag is a chain of loads."""
        cycles = sums[..., traffic.WARP_BAGS] * bag_cycles + sums[..., traffic.WARP_LOOKUPS] * row_cycles
        cycles = cycles + sums[..., traffic.WARP_MISSES] * miss_cycles
        widest = _root(sums[..., traffic.WIDEST], traffic.WIDTH_POWER)
        room = warps / np.sqrt(np.maximum(widest / traffic.REGISTER_DIM, 1.0))
        return np.asarray(cycles / (self.spec.sms * room) / self.spec.clock_mhz)

    def _latency_us(self, sums: FloatArray) -> FloatArray:
        """The work, and the longest chain while the last bags leave other warps idle."""
        c = self.coefficients
        longest = c.bag_cycles + c.row_cycles * _longest(sums, traffic.CHAIN)
        longest = longest + c.miss_cycles * _longest(sums, traffic.MISS_CHAIN)
        work = self._work_us(sums, c.resident_warps, c.bag_cycles, c.row_cycles, c.miss_cycles)
        return work + longest / self.spec.clock_mhz

    def _legacy_latency_us(self, sums: FloatArray) -> FloatArray:
        c = self.coefficients
        longest = c.legacy_bag_cycles + c.legacy_row_cycles * _longest(sums, traffic.CHAIN)
        work = self._work_us(sums, c.warps_per_sm, c.legacy_bag_cycles, c.legacy_row_cycles)
        return work + longest / self.spec.clock_mhz

    def _joined(
        self, sums: FloatArray, needed: int, start_us: FloatArray | float, *parts: FloatArray
    ) -> FloatArray:
        """The start and the longest of the parts, smoothly (a 3-norm); nothing where ``needed`` is zero."""
        joined = np.cbrt(sum(part * part * part for part in parts))
        return np.where(sums[..., needed] > 0, start_us + joined, 0.0)


def _memory_gbps(spec: GpuSpec) -> float:
    if spec.architecture == "cpu":
        return spec.memory_gbps
    streams = cached_streams(SHIPPED.with_name("streams.json"))
    own, _ = measured_stream(streams, spec)
    fitted_on = next((s.usual_share for s in streams if s.machine.architecture == "volta"), C.USUAL_SHARE)
    return spec.memory_gbps * (own.usual_share if own else C.USUAL_SHARE) / fitted_on


def _longest(sums: FloatArray, column: int) -> FloatArray:
    """The longest chain of all tables, from the sum of its powers."""
    return _root(sums[..., column], traffic.CHAIN_POWER)


def _root(values: FloatArray, power: float) -> FloatArray:
    """The root of a power of two: square roots, which are much faster than any others."""
    for _ in range(int(log2(power))):
        values = np.sqrt(values)
    return values
