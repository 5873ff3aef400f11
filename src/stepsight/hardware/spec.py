"""What a platform is made of: plain figures, every one from a data sheet or a measurement.

Hardware is data: the catalogue's TOML files hold these records with a source for each
figure; models (``kernels``, ``collectives``, ``overheads``) are fitted on top of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One processor, as its maker describes it. Peaks are dense (no sparsity).

    ``peak_tflops`` is by dtype: fp64, fp32, tf32, fp16, bf16, fp8 (missing where the
    hardware has no such unit). A CPU is described by the same record.
    ``launch_us`` is from the return of a launch call to the start of its kernel on an idle
    stream, ``kernel_gap_us`` between two kernels queued on one stream. Defaults: medians over
    profiler traces of V100, A100 and H100 (2.0, 2.0, 1.8 µs and 1 to 2, 1.5 µs; 2020 to 2025).
    ``power_w`` is the board's power limit in W; None where nobody states it: its clock is then taken to stay.
    ``speed`` divides all kernel times: 0.9 is a board that runs its kernels at nine tenths of what
    the models expect (a power limit, heat, older libraries).
    ``inline_ecc``: error correction is on and its check bits share the memory's bus with the data (boards of
    data centres with GDDR memory); HBM has wires of its own for them.
    ``l2_copies``: partitions of the L2 that each keep what their own SMs read, so that data of all SMs is
    there as often.
    ``memory_gb`` is as data sheets state it, in binary gigabytes; ``usable_bytes`` is what a job may
    take of it.
    """

    name: str
    vendor: str
    architecture: str
    sms: int
    clock_mhz: float
    memory_gb: float
    memory_gbps: float
    l2_mb: float
    l2_gbps: float
    peak_tflops: Mapping[str, float]
    pcie_gbps: float
    shared_kb_per_sm: float = 64.0
    sector_bytes: int = 32
    launch_us: float = 2.0
    kernel_gap_us: float = 1.2
    speed: float = 1.0
    source: str = ""
    aliases: tuple[str, ...] = ()
    power_w: float | None = None
    inline_ecc: bool = False
    l2_copies: int = 1

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * BYTES_PER_GB

    @property
    def usable_bytes(self) -> float:
        """What a job's tensors may take; the rest is the CUDA context's and NCCL's."""
        return usable_bytes(self.memory_gb)

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s for a dtype; a dtype without its own unit runs on the fp32 one."""
        return 1e12 * self.peak_tflops.get(dtype, self.peak_tflops["fp32"])


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """How the GPUs of a node (or the nodes) are joined.

    ``kind``: nvlink_mesh, nvswitch, xgmi, pcie, loopback, none; of networks infiniband, roce, efa, slingshot,
    ethernet (TCP).
    ``gbps`` is gigabytes per second, one direction, per GPU. ``peer_access``: GPUs write to each other's
    memory; without it (GeForce over PCIe) data goes through host memory.
    """

    kind: str
    gbps: float
    latency_us: float
    source: str = ""
    peer_access: bool = True


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host that launches. ``speed`` scales T1–T5: 2.0 is a host twice as fast.

    ``synchronous``: the host executes the kernels itself (a CPU platform).
    """

    name: str
    speed: float = 1.0
    synchronous: bool = False
    cores: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class ContentionSpec:
    """How much slower work gets while something overlaps with it (1.0 = not at all).

    ``compute_beside_compute`` is for a kernel that begins on one stream while one that fills the GPU runs
    on another: the earlier one's blocks go first.
    ``lookups_*`` is for ranks whose tables lie in one memory: what a lookup takes while all ranks
    of its node look up, against alone. Its model then states the time with the others.
    """

    compute_under_comm: float = 1.0
    comm_under_compute: float = 1.0
    lookups_forward: float = 1.0
    lookups_backward: float = 1.0
    compute_beside_compute: float = 1.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class PlatformSpec:
    """GPUs, host and links by figures; `load_platform` adds the fitted models."""

    name: str
    gpu: GpuSpec
    gpus_per_node: int
    nodes: int
    link: LinkSpec
    nic: LinkSpec | None
    host: HostSpec
    contention: ContentionSpec = field(default_factory=ContentionSpec)
    price_per_gpu_hour: float | None = None

    @property
    def ranks(self) -> int:
        return self.gpus_per_node * self.nodes


BYTES_PER_GB = 2**30
"""Data sheets, and so `GpuSpec.memory_gb`, state memory in binary gigabytes."""
USABLE_SHARE = 0.96
"""Of a GPU's memory, what a job's tensors can take before the CUDA context and NCCL's buffers fill it:
between 0.94 and 0.98, which part best what ran from what did not (nine groups of an H100 sweep, four of
published layouts)."""


def usable_bytes(memory_gb: float) -> float:
    """What a job's tensors may take of a GPU whose data sheet states ``memory_gb``."""
    return memory_gb * BYTES_PER_GB * USABLE_SHARE


NEVER_EMULATED = frozenset({"fp8", "fp4"})
"""Types whose products fail to run without units of their own (Transformer Engine, torchao)."""
INSTEAD = {"fp8": ("bf16", "fp16"), "fp4": ("fp8", "bf16"), "bf16": ("fp16",), "fp16": (), "tf32": ()}
"""What people train in where a type is missing, best first."""


def has_units(gpu: GpuSpec, dtype: str) -> bool:
    """Whether products of a type run at a rate of their own; all others run at the fp32 rate."""
    return dtype in gpu.peak_tflops or dtype not in INSTEAD


def half_type(gpu: GpuSpec) -> str:
    """The type of 16 bits that people train in on a GPU; fp32 where none has a rate of its own."""
    return next((dtype for dtype in ("bf16", "fp16") if has_units(gpu, dtype)), "fp32")


def lack(gpu: GpuSpec, dtype: str) -> str:
    """What to say of a type without units: the hardware has none, or a file states no peak."""
    if gpu.source == "given":
        return f"the description of {gpu.name} states no {dtype} peak"
    return f"{gpu.name} has no {dtype} tensor cores" if dtype != "fp16" else f"{gpu.name} has no fast fp16"


def substitute(gpu: GpuSpec, dtype: str) -> str:
    """What to do instead."""
    other = next((d for d in INSTEAD.get(dtype, ()) if d in gpu.peak_tflops), "fp32")
    stated = f", or state gpu.peak_tflops.{dtype}" if gpu.source == "given" else ""
    return f"use {other}{stated}"


def emulated(gpu: GpuSpec, dtype: str) -> str:
    """The warning for a type that runs without units of its own."""
    if dtype == "tf32":
        return f"{lack(gpu, dtype)}: PyTorch runs such products in fp32"
    rate = f"products run at its fp32 rate, {rate_words(gpu, dtype)}"
    return f"{lack(gpu, dtype)}: {rate}; {substitute(gpu, dtype)}"


def rate_words(gpu: GpuSpec, dtype: str) -> str:
    """How much slower that is than the type that people train in there."""
    other = next((d for d in INSTEAD.get(dtype, ()) if d in gpu.peak_tflops), "")
    fp32 = gpu.peak_tflops["fp32"]
    if not other:
        return f"{fp32:g} TFLOP/s"
    return f"{fp32:g} TFLOP/s where {other} has {gpu.peak_tflops[other]:g}"
