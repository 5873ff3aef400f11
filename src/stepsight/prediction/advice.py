"""What would make a job fit that does not: by which part is too large, and which GPUs have the room."""

from __future__ import annotations

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.hardware.spec import GpuSpec
from stepsight.prediction.memory import MemoryLine

MOST_GPUS = 3
STATE = ("optimizer_state", "gradients", "parameters")


def what_would_help(
    memory: MemoryLine,
    gpu: GpuSpec | None,
    batch_per_rank: float | None,
    ranks: int,
    *,
    sharded: bool = False,
    field: str = "a batch",
) -> tuple[str, ...]:
    """Changes that would make room, the most direct first; empty where it fits. ``batch_per_rank`` are the
    samples that a rank holds activations of at once, and ``field`` is what sets them."""
    if not memory.excess_bytes:
        return ()
    helps = [*_activations(memory, batch_per_rank, field), *_tables(memory), *_state(memory, ranks, sharded)]
    return (*(helps or _together(memory)), *_larger(memory, gpu))


def _activations(memory: MemoryLine, batch_per_rank: float | None, field: str) -> list[str]:
    """Activations and what goes with them: buffers of the loss, and what the allocator cannot join."""
    stays = sum(memory.parts_bytes.get(name, 0.0) for name in (*STATE, "tables"))
    held, left = memory.total_bytes - stays, memory.capacity_bytes - stays
    if memory.parts_bytes.get("activations", 0.0) <= 0 or held <= 0 or left <= 0:
        return []
    most = int((batch_per_rank or 0) * left / held)
    if most >= 1:
        return [f"{field} of at most {most:,} a rank, or recomputation of activations"]
    return ["recomputation of activations, or sequences split over ranks (tensor or context parallelism)"]


def _tables(memory: MemoryLine) -> list[str]:
    if memory.parts_bytes.get("tables", 0.0) < memory.excess_bytes:
        return []
    return ["tables over more ranks or cut in parts (`stepsight shard`), or tables in fp16"]


def _state(memory: MemoryLine, ranks: int, sharded: bool) -> list[str]:
    if sum(memory.parts_bytes.get(name, 0.0) for name in STATE) < memory.excess_bytes:
        return []
    if ranks == 1:
        return ["more GPUs, with optimizer state, gradients or weights sharded over them (ZeRO, FSDP)"]
    if sharded:
        return ["more GPUs: each then holds a smaller shard of weights, gradients and optimizer state"]
    return ["optimizer state, gradients or weights sharded over the data-parallel ranks (ZeRO, FSDP)"]


def _together(memory: MemoryLine) -> list[str]:
    """Where no part alone is as large as what is missing."""
    held = memory.parts_bytes.get("activations", 0.0)
    state = sum(memory.parts_bytes.get(name, 0.0) for name in STATE)
    if not held or not state or held + state < memory.excess_bytes:
        return []
    return [
        "less of both: smaller micro-batches or recomputation of activations; weights, gradients and"
        " optimizer state over more GPUs (FSDP, tensor or pipeline parallelism)"
    ]


def _larger(memory: MemoryLine, gpu: GpuSpec | None) -> list[str]:
    room = [
        (e.gpu.memory_gb, e.gpu.name)
        for e in gpu_catalogue().values()
        if e.gpu.memory_gb * 1e9 >= memory.total_bytes and (gpu is None or e.gpu.vendor == gpu.vendor)
    ]
    if not room:
        return ["more ranks: no GPU of the catalogue has this much memory"]
    names = ", ".join(name for _, name in sorted(room)[:MOST_GPUS])
    return [f"a GPU with {memory.total_bytes / 1e9:.0f} GB or more: {names}"]
