"""A learned kernel model: speed of light over an efficiency that boosted trees read off the shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.features import FEATURES
from stepsight.kernels.learned.trees import ObliviousTrees
from stepsight.kernels.machine import Machine

BASE_US = 2.5
"""Added to the speed of light before the efficiency is learned, so that it stays finite for the
smallest kernels: the shortest GEMMs of the bf16 tables (A100, H100) take 2.45 µs."""

RANGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k", "light"),
    "attention": ("batch", "heads", "q", "kv", "head_dim", "light"),
    "conv": ("batch", "m", "n", "k", "light"),
    "rows": ("rows", "cols", "light"),
}
"""The columns whose fitted range decides whether a shape is an extrapolation."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a model was fitted on, when, and how well it did on shapes it had not seen."""

    source: str
    rows: int
    date: str
    held_out_rows: int
    gmae: float
    mape: float
    note: str = ""
    fingerprint: str = ""
    """Of the readings it was fitted and scored on, to tell their table from another of the same kind."""


@dataclass(frozen=True, slots=True)
class EventPath:
    """What a pair of CUDA events around one operator adds to its kernel.

    ``added_us`` passes between the first event and the kernel's start; no reading falls below
    ``floor_us``, the host's own time for the operator. ``stretch``: how much longer kernels took on the
    measured board than its clocks allow, where its table ran throttled.
    """

    added_us: float = 0.0
    floor_us: float = 0.0
    stretch: float = 1.0

    def reading_us(self, kernel_us: FloatArray) -> FloatArray:
        """What the events would read around kernels that take ``kernel_us``."""
        return np.maximum(self.stretch * kernel_us + self.added_us, self.floor_us)


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Trees for one family and dtype, fitted on one GPU.

    ``variant`` tells apart kernels of one family that were measured apart ("linear", "bmm").
    ``stacks`` lists the software stacks that were measured beside each other; their position
    is a column of the trees. ``spread`` is the standard deviation of ln(time) whose 90 % interval holds
    90 % of unseen shapes.
    ``low`` and ``high`` bound the fitted range of the columns named in `RANGE_KEYS`.
    """

    family: str
    dtype: str
    variant: str
    features: str
    columns: tuple[str, ...]
    machine: Machine
    trees: ObliviousTrees
    low: tuple[float, ...]
    high: tuple[float, ...]
    spread: float
    provenance: Provenance
    path: EventPath = field(default_factory=EventPath)
    stacks: tuple[str, ...] = ()

    def time_us(
        self, batch: Batch, machine: Machine, stack: Sequence[str] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Kernel times on ``machine``, and how far (in e-folds) each shape lies outside the fitted range.

        Outside it every tree answers as at the edge: the efficiency stays flat, the speed of light goes on.
        """
        named = FEATURES[self.features](batch.dims, batch.element_bytes, machine)
        outside = self._outside(named)
        if self.stacks:
            named["stack"] = self._stack_column(len(batch), stack)
        table = np.stack([named[key] for key in self.columns]).astype(np.float32)
        learned = self.trees.predict(table)
        light = light_us(batch.as_family(self.family), machine)
        return (BASE_US + light) * np.exp(learned), outside

    def _outside(self, named: Mapping[str, FloatArray]) -> FloatArray:
        total = np.zeros(len(next(iter(named.values()))))
        for key, low, high in zip(RANGE_KEYS[self.features], self.low, self.high, strict=True):
            if low == high:  # never varied in the tables: the other columns carry its effect
                continue
            total += np.maximum(0.0, np.maximum(named[key] - high, low - named[key]))
        return total

    def _stack_column(self, n: int, stack: Sequence[str] | None) -> FloatArray:
        if stack is None:
            return np.zeros(n)
        position = {name: float(i) for i, name in enumerate(self.stacks)}
        return np.array([position.get(name.lower(), 0.0) for name in stack])


def light_us(batch: Batch, machine: Machine) -> FloatArray:
    """Speed of light against the figures of ``machine``."""
    return np.maximum(batch.flops / (machine.tflops * 1e6), batch.bytes / (machine.memory_gbps * 1e3))
