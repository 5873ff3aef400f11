"""What each rank's device must hold at the peak of a step."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.hardware.spec import usable_bytes
from stepsight.workload.operators import optimizers
from stepsight.workload.operators.optimizers import STATE_PER_PARAMETER
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import peaks
from stepsight.workload.training import Training

CONTEXT_BYTES = 0.5e9
"""CUDA context, cuBLAS workspaces and NCCL buffers of one process: measured values vary from
0.3 to 1 GB with driver and GPU; half a gigabyte is a stated allowance."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes on one rank. ``activations`` are what the forward pass keeps for the backward pass; where the
    step's storages were followed, all that is active at the peak besides the other parts, and ``cached`` what
    the caching allocator has reserved beyond that. ``temporary``: what lives shortly around the peak (logits,
    gathered parameters, a layer that is run again). ``reclaimable`` bytes are free and lie in the allocator,
    too, but it gives them back where memory is short, so they do not count for what fits."""

    parameters: float
    gradients: float
    optimizer_state: float
    activations: float
    tables: float = 0.0
    buckets: float = 0.0
    context: float = CONTEXT_BYTES
    cached: float = 0.0
    temporary: float = 0.0
    followed: bool = False
    reclaimable: float = 0.0

    @property
    def reserved(self) -> float:
        """What the allocator holds."""
        return self.total + self.reclaimable

    @property
    def total(self) -> float:
        return self.peak_active + self.cached + self.context

    @property
    def peak_active(self) -> float:
        """What tensors hold at the peak, as torch's allocator counts it where ``followed``."""
        return (
            self.parameters + self.gradients + self.optimizer_state + self.tables + self.activations
            + self.buckets + self.temporary
        )  # fmt: skip

    @property
    def peak_reserved(self) -> float:
        return self.peak_active + self.cached


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All ranks' memory."""

    ranks: tuple[RankMemory, ...]

    @property
    def peak_bytes(self) -> float:
        """The fullest rank."""
        return max(rank.total for rank in self.ranks)

    def excess_bytes(self, gpu_memory_gb: float) -> float:
        """By how much the fullest rank does not fit (negative: what stays free)."""
        return self.peak_bytes - usable_bytes(gpu_memory_gb)


def peak_memory(tape: Tape, training: Training, replicas: int) -> RankMemory:
    """The data-parallel part of a step as recorded; activations and cached bytes by what torch's caching
    allocator reaches in it."""
    sizes = [p.bytes for p in tape.parameters]
    wide = [training.state_bytes * p.elements for p in tape.parameters]
    narrow, parameters = training.copies_weights, float(sum(sizes))
    states = STATE_PER_PARAMETER[training.optimizer] + int(narrow)
    passing = wide * optimizers.temporaries(training.optimizer, training.fused_optimizer, narrow)
    buckets = sizes if replicas > 1 else []
    held = [*sizes, *buckets, *(sizes if tape.grads_kept else [])]
    reached = peaks(tape.lifetimes, held, wide * states, passing)
    state = float(states * sum(wide))
    rest = 2 * parameters + state + sum(buckets)
    return RankMemory(
        parameters=parameters,
        gradients=parameters,
        optimizer_state=state,
        activations=max(reached.active_bytes - rest, 0.0),
        buckets=float(sum(buckets)),
        cached=float(reached.reserved_bytes - max(reached.active_bytes, rest)),
        followed=True,
    )
