"""From sums of columns to the time of a fused lookup on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.traffic import CacheView
from stepsight.platform.spec import GpuSpec


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """What the specification does not say.

    Efficiencies are shares of the data sheet's bandwidths; ``cache_share`` is the part of the L2
    that rows find room in; ``norm`` joins the memory, cache and latency times smoothly.
    Cycles are those of a warp: to set up a bag, to fetch one more row of it, to fold one lookup
    into its row's update. ``legacy_*`` are the table-batched kernels of 2020.
    Fitted (log error, soft L1, every source weighing the same) on the V100 points and DLRM kernel
    lists for the latter, and on FBGEMM kernels in traces of V100 and A100 and two H100 reports for
    the former; ``sort_bytes`` is read off the sort kernels of an A100 trace.
    """

    read_efficiency: float = 0.93
    write_efficiency: float = 0.95
    l2_efficiency: float = 1.0
    cache_share: float = 0.69
    norm: float = 2.35
    start_us: float = 3.3
    warps_per_sm: float = 32.0
    bag_cycles: float = 3400.0
    row_cycles: float = 740.0
    update_cycles: float = 2700.0
    backward_start_us: float = 105.0
    sort_bytes: float = 190.0
    legacy_bag_cycles: float = 265.0
    legacy_row_cycles: float = 56.0
    legacy_atomics_per_cycle: float = 38.6
    spread: float = 0.2


UNCALIBRATED_CPU = GpuCoefficients(
    read_efficiency=0.5, write_efficiency=0.4, l2_efficiency=0.3, start_us=20.0, warps_per_sm=1.0,
    bag_cycles=12.0, row_cycles=10.0, update_cycles=80.0, backward_start_us=30.0, sort_bytes=0.0, spread=0.6,
)  # fmt: skip
"""A stated guess for a CPU that nobody has measured, from one core of an AMD EPYC of 2023 with torch's
embedding bag: 20 µs a call, 4 ns a bag, 4 ns a lookup besides its traffic, 30 ns to update a row."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """Joins summed columns into times for one GPU."""

    spec: GpuSpec
    coefficients: GpuCoefficients

    @property
    def cache(self) -> CacheView:
        c = self.coefficients
        return CacheView(
            self.spec.l2_mb * 2**20 * c.cache_share, self.spec.sector_bytes, self.spec.sms * c.warps_per_sm
        )

    def forward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        """A fused forward; ``sorted_update`` False is the kernel of 2020."""
        c = self.coefficients
        bag, row = (
            (c.bag_cycles, c.row_cycles) if sorted_update else (c.legacy_bag_cycles, c.legacy_row_cycles)
        )
        return self._joined(sums, c.start_us, self._memory_us(sums, c.read_efficiency), self._cache_us(sums),
                            self._latency_us(sums, bag, row))  # fmt: skip

    def backward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        """A fused backward and update; without a sort every lookup adds to its row atomically."""
        c = self.coefficients
        memory = self._memory_us(sums, c.write_efficiency)
        if not sorted_update:
            atomics = sums[..., traffic.ATOMICS] / (c.legacy_atomics_per_cycle * self.spec.clock_mhz)
            return self._joined(sums, c.start_us, memory, atomics)
        sort = sums[..., traffic.LOOKUPS] * c.sort_bytes / (self.spec.memory_gbps * 1e3)
        fold = self._latency_us(sums, 0.0, c.update_cycles)
        return self._joined(sums, c.backward_start_us + sort, memory, self._cache_us(sums), fold)

    def _memory_us(self, sums: FloatArray, efficiency: float) -> FloatArray:
        return np.asarray(sums[..., traffic.DRAM] / (self.spec.memory_gbps * 1e3 * efficiency))

    def _cache_us(self, sums: FloatArray) -> FloatArray:
        bandwidth = self.spec.l2_gbps * 1e3 * self.coefficients.l2_efficiency
        return np.asarray(sums[..., traffic.L2] / bandwidth)

    def _latency_us(self, sums: FloatArray, bag_cycles: float, row_cycles: float) -> FloatArray:
        """Little's law: the warps that fit take bags in turn, and a bag is a chain of loads."""
        at_once = self.spec.sms * self.coefficients.warps_per_sm
        cycles = sums[..., traffic.WARP_BAGS] * bag_cycles + sums[..., traffic.WARP_LOOKUPS] * row_cycles
        longest = bag_cycles + row_cycles * sums[..., traffic.CHAIN] ** (1 / traffic.CHAIN_POWER)
        return np.asarray((cycles / at_once + longest * (bag_cycles > 0)) / self.spec.clock_mhz)

    def _joined(self, sums: FloatArray, start_us: FloatArray | float, *parts: FloatArray) -> FloatArray:
        norm = self.coefficients.norm
        joined = np.sum(np.stack(parts) ** norm, axis=0) ** (1 / norm)
        return np.where(sums[..., traffic.LOOKUPS] > 0, start_us + joined, 0.0)
