"""What a step trains and how it is spread: what a reader must know to use its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setup:
    """Batch, precision and parallelism of a job, as its description states or implies them.

    ``samples`` and ``tokens`` are those of one step over all ranks (``tokens`` only where samples
    are sequences of ``sequence`` tokens). ``parallel`` names the axes with their sizes, such as
    ``(("data", 4), ("tensor", 2))``. ``details`` are further choices worth a reader's glance.
    ``model_flops`` is what one step of the whole job must compute by its definition: forward and
    backward pass without recomputation. Without it FLOPs are counted from the job's kernels.
    ``default_batch``: the description gives no batch, so that one sample per replica is assumed.
    ``at_once``: samples of a rank whose activations are held together, where that is not its whole batch.
    """

    samples: float | None = None
    default_batch: bool = False
    tokens: float | None = None
    sequence: int | None = None
    precision: str = ""
    parallel: tuple[tuple[str, int], ...] = ()
    details: tuple[str, ...] = ()
    model_flops: float | None = None
    at_once: float | None = None
