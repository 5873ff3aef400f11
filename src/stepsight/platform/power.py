"""The clock that a GPU keeps under hours of load, and the energy it takes.

A board lowers its clock until its average power meets its limit. Power is idle power, plus energy per FLOP
(which falls with voltage, and so with the clock), plus energy per byte of memory traffic. Kernels lose time
only as far as arithmetic bounds them: a kernel at 18 % of peak spends 18 % of its time waiting for the clock.
The average is over the kernels of a step back to back: waits for other ranks last longer than the control
loop of the board, which recovers its clock meanwhile and loses it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, batches
from stepsight.kernels.roofline import PCIE_FAMILIES, TENSOR_CORE_FAMILIES, peak_flops, speed_of_light_us
from stepsight.program.job import Kernel

C = area("power")
PEAK_DRAW = C.by_name("PEAK_DRAW")
TABLES_AT_LIMIT = frozenset(C.entries["TABLES_AT_LIMIT"].value)
FP8_ENERGY = C.by_name("FP8_ENERGY")
VOLTAGE_FLOOR = C.by_name("VOLTAGE_FLOOR")
FLAGSHIP = C.texts("FLAGSHIP")

LOWEST_CLOCK = 0.2
"""Of the boost clock: boards do not go below it, they switch off."""
HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Draw:
    """Kernels' time at boost clock, how much of it arithmetic bounds, and its energy, in µs and J."""

    time_us: float = 0.0
    clock_bound_us: float = 0.0
    flop_j: float = 0.0
    byte_j: float = 0.0

    def plus(self, other: Draw, times: float = 1.0) -> Draw:
        return Draw(*(getattr(self, f.name) + times * getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Draws:
    """The same for each of many kernels, as arrays."""

    time_us: FloatArray
    clock_bound_us: FloatArray
    flop_j: FloatArray
    byte_j: FloatArray

    def scaled(self, time_us: FloatArray, before_us: FloatArray) -> Draws:
        """The same kernels at the same power for longer or shorter, as learned factors say: what a run
        measured held at the clock that it kept."""
        part = np.divide(time_us, before_us, out=np.ones(len(before_us)), where=before_us > 0)
        return Draws(*(part * a for a in (self.time_us, self.clock_bound_us, self.flop_j, self.byte_j)))

    def total(self, counts: FloatArray) -> Draw:
        return Draw(
            *(float(counts @ a) for a in (self.time_us, self.clock_bound_us, self.flop_j, self.byte_j))
        )


def _of(gpu: GpuSpec, table: Mapping[str, float]) -> float:
    """A constant of a GPU's generation."""
    return table.get(gpu.architecture, table["default"])


@dataclass(frozen=True, slots=True)
class Power:
    """Energy of one GPU: watts where nothing runs, its limit, joules per FLOP by type and per byte.

    ``tabled_w``: the limit that the board was held by while its kernel tables were measured, at its standard
    boost clock (this board's is ``clock_ratio`` of that). None for tables measured at boost clock.
    """

    idle_w: float
    limit_w: float
    flop_j: Mapping[str, float]
    byte_j: float
    voltage_floor: float
    tabled_w: float | None = None
    clock_ratio: float = 1.0

    @classmethod
    def of(cls, gpu: GpuSpec) -> Power | None:
        """The board's power inside training steps; None where nobody states its limit."""
        if gpu.power_w is None:
            return None
        entry = find_gpu(FLAGSHIP.get(gpu.architecture, ""))
        chip = entry.gpu if entry is not None and entry.gpu.power_w is not None else gpu
        board_w = chip.power_w or gpu.power_w
        standard = find_gpu(gpu.name)
        standard_w = (standard.gpu.power_w if standard else None) or gpu.power_w
        idle_w = min(C.IDLE_SHARE * standard_w, 0.5 * gpu.power_w)
        spare_w = (1 - C.IDLE_SHARE) * board_w
        per_flop = {}
        for dtype, tflops in chip.peak_tflops.items():
            share = C.VECTOR_DRAW if dtype in ("fp32", "fp64") else _of(gpu, PEAK_DRAW)
            per_flop[dtype] = share * spare_w / (1e12 * tflops)
        if "fp8" in per_flop and "bf16" in per_flop:
            per_flop["fp8"] = _of(gpu, FP8_ENERGY) * per_flop["bf16"]
        per_byte = C.BANDWIDTH_DRAW * spare_w / (1e9 * chip.memory_gbps)
        tabled_w = standard_w if gpu.name in TABLES_AT_LIMIT else None
        ratio = gpu.clock_mhz / (standard.gpu.clock_mhz if standard else gpu.clock_mhz)
        return cls(idle_w, gpu.power_w, per_flop, per_byte, _of(gpu, VOLTAGE_FLOOR), tabled_w, ratio)

    def energy_scale(self, clock: float) -> float:
        """Energy per FLOP at a clock, over that at the standard boost clock: voltage squared."""
        return float((self.voltage_floor + (1 - self.voltage_floor) * clock * self.clock_ratio) ** 2)

    def watts(self, draw: Draw, clock: float = 1.0) -> float:
        """Average power of kernels back to back at a clock (share of boost)."""
        time_us = draw.time_us + draw.clock_bound_us * (1 / clock - 1)
        if time_us <= 0:
            return self.idle_w
        return self.idle_w + (draw.flop_j * self.energy_scale(clock) + draw.byte_j) / time_us * 1e6

    def clock(self, draw: Draw) -> float:
        """The highest clock (share of boost) at which average power meets the limit."""
        if self.watts(draw) <= self.limit_w:
            return 1.0
        low, high = LOWEST_CLOCK, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.watts(draw, middle) <= self.limit_w else (low, middle)
        return low

    def alone(self, draw: Draw) -> float:
        """The same for one kernel run again and again."""
        return self.clock(draw if self.tabled_w else replace(draw, flop_j=C.ALONE * draw.flop_j))

    def at_boost(self, drawn: Draws) -> Draws:
        """Kernels as tables have them, at boost clock. Tables measured under the board's limit hold the clock
        at which each kernel met it; one that would need more than its arithmetic allows drew less."""
        if self.tabled_w is None:
            return drawn
        took_us, bound_us = drawn.time_us, drawn.clock_bound_us * self.clock_ratio
        spare_j = (self.tabled_w - self.idle_w) * took_us / 1e6 - drawn.byte_j
        limited = (drawn.flop_j > spare_j) & (spare_j > 0) & (bound_us > 0)
        scale = np.divide(spare_j, drawn.flop_j, out=np.ones(len(spare_j)), where=limited)
        clock = np.maximum((np.sqrt(scale) - self.voltage_floor) / (1 - self.voltage_floor), LOWEST_CLOCK)
        shorter_us = np.minimum(bound_us * (1 / clock - 1), took_us - drawn.clock_bound_us)
        boost_us = np.where(limited, took_us - shorter_us, took_us)
        clock = np.divide(bound_us, took_us - boost_us + bound_us, out=clock, where=limited)
        met_j = spare_j / (self.voltage_floor + (1 - self.voltage_floor) * clock) ** 2
        flop_j = np.where(limited, met_j, drawn.flop_j)
        return replace(drawn, time_us=boost_us, flop_j=flop_j)

    def dynamic_j(self, draw: Draw, clock: float) -> float:
        """Energy beyond idle power."""
        return draw.flop_j * self.energy_scale(clock) + draw.byte_j


def draws(kernels: Sequence[Kernel], time_us: FloatArray, gpu: GpuSpec) -> Draws:
    """What kernels with these times at boost clock draw; none of a kernel that is not a model's."""
    n = len(kernels)
    bound, flop_j, byte_j = np.zeros(n), np.zeros(n), np.zeros(n)
    power = Power.of(gpu)
    if power is None:
        return Draws(time_us, bound, flop_j, byte_j)
    for batch in batches(kernels):
        at = batch.positions
        arithmetic_us, flops, traffic = _work(batch, gpu, time_us[at])
        bound[at] = np.minimum(arithmetic_us, time_us[at])
        usual = power.flop_j.get(batch.dtype, power.flop_j["fp32"])
        each = usual if batch.family in TENSOR_CORE_FAMILIES else power.flop_j["fp32"]
        done = np.divide(bound[at], arithmetic_us, out=np.zeros(len(at)), where=arithmetic_us > 0)
        flop_j[at] = each * flops * done
        byte_j[at] = power.byte_j * traffic
    return Draws(time_us, bound, flop_j, byte_j)


def _work(batch: Batch, gpu: GpuSpec, time_us: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time at peak arithmetic, FLOPs, and bytes of device memory, never more than its time allows."""
    most = time_us * gpu.memory_gbps * 1e3
    if batch.family in PCIE_FAMILIES:
        return np.zeros(len(batch)), np.zeros(len(batch)), np.zeros(len(batch))
    if not batch.known or batch.family.startswith("embedding"):
        return np.zeros(len(batch)), np.zeros(len(batch)), C.UNKNOWN_TRAFFIC * most
    flops = batch.flops
    return flops / peak_flops(batch, gpu) * 1e6, flops, np.minimum(batch.bytes, most)


def light_us(kernels: Sequence[Kernel], gpu: GpuSpec) -> FloatArray:
    """The least time that physics allows each kernel; zero where its work is not known."""
    found = np.zeros(len(kernels))
    for batch in batches(kernels):
        if batch.known and not batch.family.startswith("embedding"):
            found[batch.positions] = speed_of_light_us(batch, gpu)
    return found
