"""What one rank's memory must hold, against what its GPU has: the one definition of "fits"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepsight.constants import area
from stepsight.hardware.gpus import gpu_catalogue
from stepsight.hardware.spec import GpuSpec
from stepsight.program.setup import Setup

C = area("prediction")

FITS = C.FITS
MOST_GPUS = 3
STATE = ("optimizer_state", "gradients", "parameters", "tables")
"""What is there from step to step."""


def fit_probability(needed_bytes: float, usable_bytes: float) -> float:
    """How likely this many bytes, by our count, fit into what is usable."""
    if needed_bytes <= 0:
        return 1.0
    return 0.5 * (1 + math.erf(math.log(usable_bytes / needed_bytes) / C.MEMORY_SPREAD / math.sqrt(2)))


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

    def to_dict(self) -> dict[str, Any]:
        """Bytes by part, the total against what is usable, whether that fits and how likely."""
        peaks = ("peak_active_bytes", "peak_reserved_bytes")
        names = (
            "parts_bytes", "total_bytes", "reclaimable_bytes", "usable_bytes", "excess_bytes", "fits",
            "fit_probability",
        )  # fmt: skip
        known = [name for name in peaks if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in ("rank", *known, *names)}


def what_would_help(memory: MemoryLine, gpu: GpuSpec | None) -> tuple[str, ...]:
    """What has the room, where a job does not fit; `stepsight advise` tries changes of the job itself."""
    if memory.fits:
        return ()
    helps = []
    if memory.parts_bytes.get("tables", 0.0) >= memory.excess_bytes:
        helps.append("tables over more ranks or cut in parts (`stepsight shard`), or tables in fp16")
    room = sorted(
        (e.gpu.memory_gb, e.gpu.name)
        for e in gpu_catalogue().values()
        if e.gpu.usable_bytes >= memory.total_bytes and (gpu is None or e.gpu.vendor == gpu.vendor)
    )
    names = ", ".join(name for _, name in room[:MOST_GPUS])
    larger = f"a GPU with more memory: {names}"
    none = "no GPU of the catalogue has this much memory: spread the model over more GPUs"
    return (*helps, larger if room else none)


def largest_batch(memory: MemoryLine, job: Setup) -> int:
    """Samples of a rank whose activations fit next to parameters and optimizer state."""
    state = sum(memory.parts_bytes.get(name, 0.0) for name in STATE)
    held, left = memory.total_bytes - state, memory.usable_bytes - state
    at_once = job.at_once or (job.samples or 0.0) / job.replicas
    return int(at_once * left / held) if held > 0 and left > 0 else 0
