"""From sums of columns to the time of a fused lookup on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.constants import USUAL_SHARE
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.traffic import CacheView
from stepsight.kernels.streams import cached_streams, measured_stream

SHIPPED = Path(__file__).parents[1] / "artefacts" / "embedding_gpu.json"


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """What the specification does not say.

    Those without a default are fitted (`stepsight fit embedding`). Efficiencies are shares of a
    V100's bandwidths, by the data sheet; other chips reach so much less of theirs as plain streams
    do. Cycles are those of a warp: to set up a bag, to fetch one more row of
    it, to fold one lookup into its row's update. ``legacy_*``: the same of the table-batched
    kernels of 2020, whose backward updates rows one by one: ``scattered_bytes`` is the traffic
    that an update far from the last ones is worth besides its own, ``contended_cycles`` passes
    between two updates of the same row.

    The others are set: ``cache_share`` of the L2 is there for rows (5.2 of a V100's 6.3 MB stay in
    it in the points); memory, cache and latency times are joined by their ``norm``; 64 warps fit
    on an SM (V100, A100 and H100 data sheets); ``sort_bytes`` is read off the sort kernels of three
    A100 traces (198 to 235 bytes a lookup at the data sheet's bandwidth). ``spread``, ``backward_spread`` and
    ``legacy_spread`` (the kernels of 2020, whose indices are known) hold nine of ten of the measured kernels
    with their source left out of the fit (26, 15 and 24 kernels).
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
    update_cycles: float
    backward_start_us: float
    cache_share: float = 0.9
    norm: float = 3.0
    l2_efficiency: float = 1.0
    warps_per_sm: float = 64.0
    sort_bytes: float = 200.0
    spread: float = 0.22
    backward_spread: float = 0.31
    legacy_spread: float = 0.11


@lru_cache(maxsize=1)
def shipped_coefficients() -> GpuCoefficients:
    """Those that come with stepsight."""
    fitted: dict[str, float] = msgspec.json.decode(SHIPPED.read_bytes())["coefficients"]
    return GpuCoefficients(**fitted)


UNCALIBRATED_CPU = GpuCoefficients(
    read_efficiency=0.5, write_efficiency=0.4, l2_efficiency=0.3, start_us=20.0, warps_per_sm=1.0,
    bag_cycles=12.0, row_cycles=10.0, update_cycles=80.0, backward_start_us=30.0, sort_bytes=0.0,
    legacy_bag_cycles=12.0, legacy_row_cycles=10.0, scattered_bytes=0.0, contended_cycles=0.0, spread=0.6,
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
            self.spec.l2_mb * 2**20 * c.cache_share, self.spec.sector_bytes, self.spec.sms * c.warps_per_sm,
            self.spec.shared_kb_per_sm * 2**10, self.spec.sms,
        )  # fmt: skip

    def forward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        """A fused forward; ``sorted_update`` False is the kernel of 2020."""
        c = self.coefficients
        memory = self._memory_us(sums, c.read_efficiency)
        latency = self._latency_us(sums, c.bag_cycles, c.row_cycles)
        if not sorted_update:
            latency = self._latency_us(sums, c.legacy_bag_cycles, c.legacy_row_cycles)
        return self._joined(sums, c.start_us, memory, self._cache_us(sums), latency)

    def backward_us(self, sums: FloatArray, *, sorted_update: bool = True) -> FloatArray:
        """A fused backward and update; without a sort every lookup reads and writes its row."""
        c = self.coefficients
        memory = self._memory_us(sums, c.write_efficiency)
        if not sorted_update:
            memory = memory + sums[..., traffic.SCATTERED] * c.scattered_bytes / (self._memory_gbps * 1e3)
            latency = self._latency_us(sums, c.legacy_bag_cycles, c.legacy_row_cycles)
            contended = sums[..., traffic.HOTTEST] * c.contended_cycles / self.spec.clock_mhz
            return self._joined(sums, c.start_us + contended, memory, self._cache_us(sums), latency)
        sort = sums[..., traffic.LOOKUPS] * c.sort_bytes / (self.spec.memory_gbps * 1e3)
        fold = self._work_us(sums, 0.0, c.update_cycles)
        return self._joined(sums, c.backward_start_us + sort, memory, self._cache_us(sums), fold)

    def _memory_us(self, sums: FloatArray, efficiency: float) -> FloatArray:
        return np.asarray(sums[..., traffic.DRAM] / (self._memory_gbps * 1e3 * efficiency))

    @property
    def _memory_gbps(self) -> float:
        """The data sheet's, less what plain streams fall short of the V100's share of theirs."""
        if self.spec.architecture == "cpu":
            return self.spec.memory_gbps
        streams = cached_streams(SHIPPED.with_name("streams.json"))
        own, _ = measured_stream(streams, self.spec)
        fitted_on = next((s.usual_share for s in streams if s.machine.architecture == "volta"), USUAL_SHARE)
        return self.spec.memory_gbps * (own.usual_share if own else USUAL_SHARE) / fitted_on

    def _cache_us(self, sums: FloatArray) -> FloatArray:
        bandwidth = self.spec.l2_gbps * 1e3 * self.coefficients.l2_efficiency
        return np.asarray(sums[..., traffic.L2] / bandwidth)

    def _work_us(self, sums: FloatArray, bag_cycles: float, row_cycles: float) -> FloatArray:
        """Little's law: the warps that fit take bags in turn, and a bag is a chain of loads."""
        at_once = self.spec.sms * self.coefficients.warps_per_sm
        cycles = sums[..., traffic.WARP_BAGS] * bag_cycles + sums[..., traffic.WARP_LOOKUPS] * row_cycles
        return np.asarray(cycles / at_once / self.spec.clock_mhz)

    def _latency_us(self, sums: FloatArray, bag_cycles: float, row_cycles: float) -> FloatArray:
        """The work, and the longest chain while the last bags leave other warps idle."""
        longest = bag_cycles + row_cycles * sums[..., traffic.CHAIN] ** (1 / traffic.CHAIN_POWER)
        return self._work_us(sums, bag_cycles, row_cycles) + longest / self.spec.clock_mhz

    def _joined(self, sums: FloatArray, start_us: FloatArray | float, *parts: FloatArray) -> FloatArray:
        norm = self.coefficients.norm
        joined = np.sum(np.stack(parts) ** norm, axis=0) ** (1 / norm)
        return np.where(sums[..., traffic.LOOKUPS] > 0, start_us + joined, 0.0)
