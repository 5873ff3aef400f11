"""What one rank's memory must hold, against what its GPU has: the one definition of "fits".

Where a job does not fit: what would help, by which part is too large, and which GPUs have the room. Nothing
that the job does already is advised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.hardware.spec import GpuSpec, usable_bytes
from stepsight.program.setup import Setup

MEMORY_SPREAD = 0.08
"""Spread of memory by our count around what 640 runs of ten groups reported."""
FITS = 0.5
"""A job fits where that is at least as likely as not: where its need, by our count, is within what is usable.
Searches recommend only what is surer."""
MOST_GPUS = 3
STATE = ("optimizer_state", "gradients", "parameters")
RECOMPUTATION = {
    "": "recomputation of activations",
    "none": "recomputation of activations",
    "selective": "full recomputation of activations",
    "partial": "recomputation of all layers' activations",
}
"""What keeps fewer activations than each kind of recomputation; nothing does than the full one."""


def fit_probability(needed_bytes: float, usable_bytes: float) -> float:
    """How likely this many bytes, by our count, fit into what is usable."""
    if needed_bytes <= 0:
        return 1.0
    return 0.5 * (1 + math.erf(math.log(usable_bytes / needed_bytes) / MEMORY_SPREAD / math.sqrt(2)))


def fits(needed_bytes: float, usable_bytes: float) -> bool:
    """Whether this many bytes more likely than not fit into what is usable."""
    return fit_probability(needed_bytes, usable_bytes) >= FITS


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What one rank's memory holds, in bytes, against what a job can use of its GPU.

    ``reclaimable_bytes`` lie in the allocator, too, which gives them back where memory is short: they do not
    count. ``peak_active_bytes`` and ``peak_reserved_bytes`` are those of torch's caching allocator, where
    they were followed; ``at`` names the operator at the active peak.
    """

    parts_bytes: Mapping[str, float]
    usable_bytes: float
    rank: int = 0
    peak_active_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    at: str = ""
    reclaimable_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return sum(self.parts_bytes.values())

    @property
    def fit_probability(self) -> float:
        return fit_probability(self.total_bytes, self.usable_bytes)

    @property
    def fits(self) -> bool:
        return fits(self.total_bytes, self.usable_bytes)

    @property
    def excess_bytes(self) -> float:
        """By how much it does not fit; zero where it does."""
        return 0.0 if self.fits else self.total_bytes - self.usable_bytes


def what_would_help(
    memory: MemoryLine, gpu: GpuSpec | None, ranks: int, setup: Setup | None = None
) -> tuple[str, ...]:
    """Changes that would make room, the most direct first; empty where it fits."""
    if memory.fits:
        return ()
    job = setup or Setup()
    helps = [*_activations(memory, job), *_tables(memory), *_state(memory, ranks, job)]
    helps = helps or _together(memory, job)
    larger = _larger(memory, gpu)
    if not larger and not any("more GPUs" in one for one in helps):
        larger = ["no GPU of the catalogue has this much memory: spread the model over more GPUs"]
    return (*helps, *larger)


def _activations(memory: MemoryLine, job: Setup) -> list[str]:
    """Activations and what goes with them: buffers of the loss, and what the allocator cannot join."""
    held = _held(memory)
    left = memory.usable_bytes - (memory.total_bytes - held)
    if memory.parts_bytes.get("activations", 0.0) <= 0 or held <= 0 or left <= 0:
        return []
    most = largest_batch(memory, job)
    if most >= 1:
        field = "parallel.micro_batch of at most" if job.at_once else "a batch of at most"
        each = "" if job.at_once else f" {job.shared_by}"
        return [_either(f"{field} {most:,}{each}", *_recomputation(job))]
    return [_either(*_recomputation(job), _split_sequences(job))]


def largest_batch(memory: MemoryLine, job: Setup) -> int:
    """Samples of a rank whose activations fit next to parameters and optimizer state."""
    held = _held(memory)
    left = memory.usable_bytes - (memory.total_bytes - held)
    at_once = job.at_once or (job.samples or 0.0) / job.replicas
    return int(at_once * left / held) if held > 0 and left > 0 else 0


def _held(memory: MemoryLine) -> float:
    """All that is not there from step to step."""
    return memory.total_bytes - sum(memory.parts_bytes.get(name, 0.0) for name in (*STATE, "tables"))


def _recomputation(job: Setup) -> tuple[str, ...]:
    return (RECOMPUTATION[job.recompute],) if job.recompute in RECOMPUTATION else ()


def _split_sequences(job: Setup) -> str:
    split = any(size > 1 for name, size in job.parallel if name in ("tensor", "context"))
    return f"sequences split over {'more ' if split else ''}ranks (tensor or context parallelism)"


def _either(*changes: str) -> str:
    return ", or ".join(changes)


def _tables(memory: MemoryLine) -> list[str]:
    if memory.parts_bytes.get("tables", 0.0) < memory.excess_bytes:
        return []
    return ["tables over more ranks or cut in parts (`stepsight shard`), or tables in fp16"]


def _state(memory: MemoryLine, ranks: int, job: Setup) -> list[str]:
    """Weights, gradients and optimizer state: sharded where they are whole, else over more GPUs."""
    if sum(memory.parts_bytes.get(name, 0.0) for name in STATE) < memory.excess_bytes:
        return []
    if job.zero == 3:
        return ["more GPUs: each then holds a smaller shard of weights, gradients and optimizer state"]
    replicas = job.replicas if job.parallel else ranks
    if replicas == 1:
        return ["more GPUs, with optimizer state, gradients or weights sharded over them (ZeRO, FSDP)"]
    whole = {1: "gradients or weights", 2: "weights"}.get(job.zero, "optimizer state, gradients or weights")
    return [f"{whole} sharded over the data-parallel ranks ({'FSDP' if job.zero == 2 else 'ZeRO, FSDP'})"]


def _together(memory: MemoryLine, job: Setup) -> list[str]:
    """Where no part alone is as large as what is missing."""
    state = sum(memory.parts_bytes.get(name, 0.0) for name in STATE)
    if not memory.parts_bytes.get("activations") or not state or _held(memory) + state < memory.excess_bytes:
        return []
    fewer = [] if job.at_once == 1 else ["smaller micro-batches"]
    fewer = [*fewer, *_recomputation(job)] or [_split_sequences(job)]
    return [
        f"less of both: {' or '.join(fewer)}; weights, gradients and optimizer state over more GPUs"
        f" ({'' if job.zero == 3 else 'FSDP, '}tensor or pipeline parallelism)"
    ]


def _larger(memory: MemoryLine, gpu: GpuSpec | None) -> list[str]:
    room = [
        (e.gpu.memory_gb, e.gpu.name)
        for e in gpu_catalogue().values()
        if e.gpu.usable_bytes >= memory.total_bytes and (gpu is None or e.gpu.vendor == gpu.vendor)
    ]
    if not room:
        return []
    names = ", ".join(name for _, name in sorted(room)[:MOST_GPUS])
    return [f"a GPU with {math.ceil(memory.total_bytes / usable_bytes(1)):,} GB or more: {names}"]
