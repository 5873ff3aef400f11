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
    backward pass without recomputation; ``recomputed_flops`` run a second time. Without it FLOPs are counted
    from the job's kernels.
    ``product_dtype`` is the type that the description states for matrix products, whose peak MFU is measured
    against, even where some of them stay in another (attention, in fp8 training).
    ``default_batch``: the description gives no batch: one sample per replica is assumed, or as many
    as fill a pipeline.
    ``at_once``: samples of a rank whose activations are held together, where that is not its whole batch.
    ``framework`` names whose code (fusions, launches, overlap) is assumed, ``recipe`` the training stack with
    its defaults (``default_recipe``: nobody named it, it is the usual one for such settings), ``differs`` the
    settings that were stated otherwise. ``zero`` is the stage of
    ZeRO, ``recompute`` which activations are computed again ("none", "selective", "partial", "full"; empty
    where that is not known). ``sample_kind`` is what samples are called: samples, images, sequences.
    """

    samples: float | None = None
    default_batch: bool = False
    tokens: float | None = None
    sequence: int | None = None
    precision: str = ""
    parallel: tuple[tuple[str, int], ...] = ()
    details: tuple[str, ...] = ()
    model_flops: float | None = None
    recomputed_flops: float = 0.0
    at_once: float | None = None
    product_dtype: str = ""
    framework: str = ""
    recipe: str = ""
    default_recipe: bool = False
    differs: tuple[str, ...] = ()
    zero: int = 0
    recompute: str = ""
    sample_kind: str = "samples"

    @property
    def replicas(self) -> int:
        """Copies of the model that see samples of their own; a sharded or split one counts once."""
        return dict(self.parallel).get("data", 1)

    @property
    def shared_by(self) -> str:
        """Whose share of the batch a figure is: ranks see samples of their own only without splits."""
        whole = all(size == 1 for name, size in self.parallel if name not in ("data", "expert"))
        return "per rank" if whole else "per replica"
