"""The few figures of a GPU that shape features and speed of light are measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log2

from stepsight.constants import area
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import GpuSpec

C = area("kernels")

HBM_SMS = {"pascal": (56,), "ampere": (108, 56), "blackwell": (148, 152, 160)}
"""Multiprocessors of the boards with HBM in generations that have both kinds of memory (data sheets):
P100; A100 and A30; B200 and B300, GB200 and GB300."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU as one dtype sees it: peak arithmetic, memory, multiprocessors, cache."""

    name: str
    architecture: str
    tflops: float
    memory_gbps: float
    sms: int
    l2_mb: float

    @classmethod
    def of(cls, spec: GpuSpec, dtype: str) -> Machine:
        return cls(
            spec.name,
            spec.architecture,
            spec.peak_flops(dtype) / 1e12,
            spec.memory_gbps,
            spec.sms,
            spec.l2_mb,
        )

    def same_chip(self, other: Machine) -> bool:
        """Board and memory variants of one chip: A100 PCIe and SXM, 40 and 80 GB."""
        return self.architecture == other.architecture and self.sms == other.sms

    @property
    def gddr(self) -> bool:
        """Whether the board carries GDDR memory: all of Turing, Ada and RDNA 3, and others without HBM."""
        stacked = HBM_SMS.get(self.architecture)
        return self.architecture in ("turing", "ada", "rdna3") or (
            stacked is not None and self.sms not in stacked
        )

    @property
    def wide(self) -> bool:
        return wide_tensor_cores(self.architecture, self.gddr)

    def with_memory_of(self, other: Machine) -> Machine:
        """This chip's measured arithmetic with the other board's memory."""
        return replace(self, memory_gbps=other.memory_gbps)

    def distance(self, other: Machine) -> float:
        """How unlike two GPUs are for transfer: generation, kind of memory, balance, size."""
        apart = abs(generation(self.architecture) - generation(other.architecture))
        balance = abs(log2((self.tflops / self.memory_gbps) / (other.tflops / other.memory_gbps)))
        memory = 1.0 if self.gddr != other.gddr else 0.0
        return apart + memory + 0.5 * balance + 0.25 * abs(log2(self.sms / other.sms))


SYNCHRONOUS = frozenset({"volta", "turing", "ampere", "ada", "blackwell"})
"""Generations whose warps issue matrix instructions and wait for them (mma.sync); of Blackwell's boards those
with GDDR memory."""
RATE_OF_A100: Mapping[str, float] = {"fp16": 2048.0, "bf16": 2048.0, "tf32": 1024.0, "fp8": 4096.0}
"""FLOPs per multiprocessor and clock (A100 whitepaper); fp8, which it lacks, by the ratio of later boards."""
FEEDING = C.number("FEEDING")


def feeding_share(spec: GpuSpec, dtype: str) -> float:
    """What a board's tensor cores reach of their peak, over what A100's reach of theirs."""
    rate = RATE_OF_A100.get(dtype)
    if rate is None or wide_tensor_cores(spec.architecture, Machine.of(spec, "fp32").gddr):
        return 1.0
    if spec.architecture not in SYNCHRONOUS:
        return 1.0
    slower = spec.peak_flops(dtype) / (spec.sms * spec.clock_mhz * 1e6) / rate
    return (1 + FEEDING) / (1 + FEEDING * min(slower, 1.0))


def resident_threads(spec: GpuSpec) -> int:
    """Threads that a multiprocessor holds (compute capabilities in NVIDIA's programming guide)."""
    if spec.architecture == "turing":
        return 1024
    small = Machine.of(spec, "fp32").gddr and spec.architecture in ("ampere", "ada", "blackwell")
    return 1536 if small else 2048


def wide_tensor_cores(architecture: str, gddr: bool) -> bool:
    """Whether tensor cores work asynchronously on operands in shared memory."""
    return architecture in ("hopper", "blackwell") and not gddr


def same_board(name: str, spec: GpuSpec) -> bool:
    """Whether a GPU of the catalogue is this one but for its links and fp64: H100 and H800, A100 and A800."""
    entry = find_gpu(name)
    if name == spec.name or entry is None:
        return name == spec.name
    figures = ("architecture", "sms", "memory_gbps", "power_w")
    return all(getattr(entry.gpu, figure) == getattr(spec, figure) for figure in figures) and all(
        entry.gpu.peak_flops(dtype) == spec.peak_flops(dtype) for dtype in ("fp32", "tf32", "bf16", "fp8")
    )


_GENERATIONS = {
    "maxwell": 0.0, "pascal": 0.5, "volta": 3.0, "turing": 3.7, "ampere": 4.0,
    "ada": 4.6, "hopper": 5.0, "blackwell": 5.5,
    "cdna": 5.0, "cdna2": 5.5, "cdna3": 6.0, "cdna4": 6.5, "rdna3": 6.0,
}  # fmt: skip
"""Where each generation stands on a line on which near ones share libraries and habits: Pascal's
kernels were Maxwell's, while those of Ampere, Ada, Hopper and Blackwell go back to one source."""


def generation(architecture: str) -> float:
    """A generation's place on that line; an unknown one stands among the current ones."""
    return _GENERATIONS.get(architecture.lower(), 5.0)
