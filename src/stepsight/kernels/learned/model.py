"""A learned kernel model: speed of light over an efficiency that boosted trees read off the shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.features import FEATURES, look_up_stretch
from stepsight.kernels.learned.trees import ObliviousTrees, as_table, beyond, load_trees, save_trees
from stepsight.kernels.machine import Machine
from stepsight.kernels.tiles import tiled_us

BASE_US = 2.5
"""Added to the speed of light before the efficiency is learned, so that it stays finite for the
smallest kernels: the shortest GEMMs of the bf16 tables (A100, H100) take 2.45 µs."""

TENSOR_CORES = frozenset({"fp16", "bf16", "fp8"})
"""Types whose products are measured at the chip's own clocks, whatever the board's memory."""

LIGHT, TILED, REACH = "light", "tiles", "reach"
"""What trees correct: the speed of light, whole tiles of batched fp32 products (`tiles`), or the speed of
light with the look-up of addresses (`reach`)."""

RANGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k", "light"),
    "linear": ("batch", "m", "n", "k", "light"),
    "attention": ("batch", "heads", "q", "kv", "head_dim", "light"),
    "conv": ("batch", "m", "n", "k", "light"),
    "rows": ("rows", "cols", "light"),
}
"""The columns whose fitted range decides whether a shape is an extrapolation."""


@dataclass(frozen=True, slots=True)
class EventPath:
    """What events around an operator added to a kernel's time in the table that was fitted (the laboratory
    reads it).

    ``added_us`` passes between the first event and the kernel's start; no reading falls below
    ``floor_us``, the host's own time for the operator. ``stretch``: how much longer kernels took on the
    measured board than its clocks allow, where its table ran throttled.

    Deep products with few output tiles are split along k: a second kernel adds the parts, and the host takes
    ``second_us`` longer: from a k of ``split_depth``, and of ``split_slope`` more for each output tile per
    multiprocessor.
    """

    added_us: float = 0.0
    floor_us: float = 0.0
    stretch: float = 1.0
    second_us: float = 0.0
    split_depth: float = 0.0
    split_slope: float = 0.0


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
class LearnedModel:
    """Trees for one family and dtype, fitted on one GPU.

    ``variant`` tells apart kernels of one family that were measured apart ("linear", "bmm").
    ``stacks`` lists the software stacks that were measured side by side; their position
    is a column of the trees. ``spread`` is the standard deviation of ln(time) whose 90 % interval holds
    90 % of unseen shapes.
    ``low`` and ``high`` bound the fitted range of the columns named in `RANGE_KEYS`. ``base`` is what the
    trees correct.
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
    base: str = LIGHT

    def time_us(
        self, batch: Batch, machine: Machine, stack: Sequence[str] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Kernel times on ``machine``, and how far (in e-folds) each shape lies outside the fitted range.

        Outside it every tree answers as at the edge: the efficiency stays flat, the speed of light goes on.
        Another board of the chip has its efficiencies: on tensor cores only the speed of light follows its
        memory.
        """
        other_board = machine == replace(self.machine, memory_gbps=machine.memory_gbps)
        fitted = self.machine if self.dtype in TENSOR_CORES and other_board else machine
        named = FEATURES[self.features](batch.dims, batch.element_bytes, fitted)
        outside = self._outside(named)
        if self.stacks:
            named["stack"] = self._stack_column(len(batch), stack)
        learned = self.trees.predict(as_table(named, self.columns))
        return base_us(self.base, batch.as_family(self.family), machine) * np.exp(learned), outside

    def _outside(self, named: Mapping[str, FloatArray]) -> FloatArray:
        # What never varied in the tables says nothing: the other columns carry its effect.
        low, high = np.array(self.low), np.array(self.high)
        low, high = np.where(low < high, low, -np.inf), np.where(low < high, high, np.inf)
        return beyond(named, RANGE_KEYS[self.features], low.tolist(), high.tolist())

    def _stack_column(self, n: int, stack: Sequence[str] | None) -> FloatArray:
        if stack is None:
            return np.zeros(n)
        position = {name: float(i) for i, name in enumerate(self.stacks)}
        return np.array([position.get(name.lower(), 0.0) for name in stack])


def base_us(base: str, batch: Batch, machine: Machine) -> FloatArray:
    """What the trees correct: the speed of light, with or without looking addresses up, or whole tiles."""
    if base == TILED:
        return tiled_us(batch, machine)
    return BASE_US + light_us(batch, machine, look_up_stretch(batch, machine) if base == REACH else 1.0)


def light_us(batch: Batch, machine: Machine, stretch: FloatArray | float = 1.0) -> FloatArray:
    """Speed of light against the figures of ``machine``; ``stretch`` multiplies the arithmetic."""
    arithmetic = batch.flops / (machine.tflops * 1e6) * stretch
    return np.maximum(arithmetic, batch.bytes / (machine.memory_gbps * 1e3))


SHIPPED = Path(__file__).parents[1] / "artefacts"


def save_models(path: Path, models: Sequence[LearnedModel]) -> None:
    """Write models into one artefact."""
    records = [{k: v for k, v in asdict(model).items() if k != "trees"} for model in models]
    save_trees(path, [(record, model.trees) for record, model in zip(records, models, strict=True)])


def load_models(path: Path) -> list[LearnedModel]:
    """The models of one artefact."""
    found = []
    for record, trees in load_trees(path):
        parts = {
            "machine": Machine(**record["machine"]),
            "provenance": Provenance(**record["provenance"]),
            "path": EventPath(**record["path"]),
            **{key: tuple(record[key]) for key in ("columns", "low", "high", "stacks")},
        }
        found.append(LearnedModel(**{**record, **parts, "trees": trees}))
    return found


@lru_cache(maxsize=1)
def shipped_models() -> tuple[LearnedModel, ...]:
    """The models that come with stepsight, in the order of their files' names."""
    return tuple(model for path in sorted(SHIPPED.glob("*.npz")) for model in load_models(path))
