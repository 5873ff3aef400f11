"""The registry of kernel models of one GPU: kernels in, times with their sources out."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stepsight.estimate import Estimates
from stepsight.kernels.columns import Batch, batches
from stepsight.kernels.roofline import roofline
from stepsight.platform.spec import GpuSpec
from stepsight.workload.program import Kernel

EMBEDDING_FAMILIES = frozenset({"embedding", "embedding_backward"})


class EmbeddingEstimator(Protocol):
    """Times embedding lookups, which depend on which rows are asked for."""

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates: ...


@dataclass(slots=True)
class KernelModels:
    """Kernel times on one GPU: device time only, without launch or host."""

    spec: GpuSpec
    _embedding: EmbeddingEstimator | None = field(default=None, repr=False)

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> KernelModels:
        """The shipped models for this GPU, or its relatives' carried over by the specification."""
        return cls(spec)

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Times of many kernels at once, in the order given."""
        n = len(kernels)
        time_us, spread = np.zeros(n), np.zeros(n)
        source = np.zeros(n, dtype=np.int64)
        notes: dict[int, str] = {}
        for batch in batches(kernels):
            if batch.family in EMBEDDING_FAMILIES and _embedding_is_built():
                part = self._embedding_model().estimate([kernels[i] for i in batch.positions])
            else:
                part = self.estimate_batch(batch)
            time_us[batch.positions] = part.time_us
            source[batch.positions] = part.source
            spread[batch.positions] = part.spread
            notes.update({int(batch.positions[i]): note for i, note in part.notes.items()})
        return Estimates(time_us, source, spread, notes)

    def estimate_batch(self, batch: Batch) -> Estimates:
        """Times of one family's kernels given as columns (no embedding families)."""
        return roofline(batch, self.spec)

    def _embedding_model(self) -> EmbeddingEstimator:
        if self._embedding is None:
            module = importlib.import_module("stepsight.kernels.embedding.model")
            model: EmbeddingEstimator = module.EmbeddingModel.for_gpu(self.spec)
            self._embedding = model
        return self._embedding


def _embedding_is_built() -> bool:
    return importlib.util.find_spec("stepsight.kernels.embedding.model") is not None
