"""Two DLRM training iterations on a V100, kernel by kernel (2021): the sum against the models.

The kernels are those of that PyTorch's eager step: a bias is first spread over the output, each
gradient is added to a cleared one, parameters are updated one by one, and the fused lookup's
backward updates a row per lookup.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.datasets.criteo import CRITEO, CRITEO_TB_ROWS, ORDERED
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel
from stepsight.score import FIT, Score
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import SCATTERED, Lookup, TableLookup

BATCH = 2048
GPU = "V100-SXM2-16G"
TARGET = 0.05


@dataclass(frozen=True, slots=True)
class Model:
    """A DLRM: layer widths from input to output, its tables, its lookups per table and sample."""

    file: str
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: tuple[int, ...]
    dim: int
    pooling: int
    indices: Mapping[str, Any]

    @property
    def vectors(self) -> int:
        return len(self.rows) + 1

    @property
    def pairs(self) -> int:
        return self.vectors * (self.vectors - 1) // 2


MODELS = (
    Model("v100_DLRM_default_2048_kernels.csv", (512, 512, 64), (1024, 1024, 1024, 1), (10**6,) * 8, 64, 100,
          ORDERED),
    Model("v100_DLRM_MLPerf_2048_kernels.csv", (13, 512, 256, 128), (1024, 1024, 512, 256, 1),
          tuple(CRITEO_TB_ROWS), 128, 1, CRITEO),
)  # fmt: skip


def dlrm_scores(data: Path) -> list[Score]:
    """The sum of all kernels of each list, lookups of which are in the fit; none where no list is there."""
    found = []
    models = KernelModels.for_gpu(load_gpu(GPU))
    for model in MODELS:
        path = data / "kernels" / model.file
        if not path.is_file():
            continue
        with path.open(newline="") as file:
            measured = sum(float(row["mean_us"]) for row in csv.DictReader(file))
        predicted = float(models.estimate(list(kernels(model))).time_us.sum())
        found.append(
            Score.of(
                "kernels", f"sum of kernels, {path.stem}", [predicted], [measured],
                f"all {predicted:.0f} against {measured:.0f} µs", mape_target=TARGET, exposure=FIT,
                kind="sum of kernels of a DLRM step",
            )
        )  # fmt: skip
    return found


def kernels(model: Model) -> Iterator[Kernel]:
    """Every kernel of one iteration."""
    top = (model.dim + model.pairs, *model.top)
    layers = [*pairwise(model.bottom), *pairwise(top)]
    yield from _inputs(model)
    for i, (inputs, outputs) in enumerate(layers):
        if i == len(model.bottom) - 1:
            yield _lookup(model, "embedding")
            yield from _interaction(model)
        yield _pointwise("expand", BATCH * outputs, reads=1)
        yield Kernel.of("gemm", operator="linear", batch=1, m=BATCH, n=outputs, k=inputs)
        yield _pointwise("relu", BATCH * outputs, reads=1)
    yield from _loss()
    sizes = [size for inputs, outputs in layers for size in (inputs * outputs, outputs)]
    for size in sizes:
        yield Kernel.of("fill", bytes=4 * size)
    for i, (inputs, outputs) in reversed(list(enumerate(layers))):
        yield from _layer_backward(inputs, outputs, first=i == 0)
        if i == len(model.bottom) - 1:
            yield from _interaction_backward(model)
            yield _lookup(model, "embedding_backward")
    for size in sizes:
        yield _pointwise("add", size, reads=2)


def _pointwise(name: str, elements: int, reads: int) -> Kernel:
    return Kernel.of(
        "elementwise",
        operator=name,
        elements=elements,
        read_bytes=4 * reads * elements,
        write_bytes=4 * elements,
    )


def _inputs(model: Model) -> Iterator[Kernel]:
    """Indices and offsets as 4-byte integers: the lists' own copy times say so."""
    tables = len(model.rows)
    for size in (BATCH * model.bottom[0], BATCH * tables * model.pooling, BATCH * tables):
        yield Kernel.of("copy_h2d", bytes=4 * size)


def _interaction(model: Model) -> Iterator[Kernel]:
    vectors, width = model.vectors, BATCH * model.vectors * model.dim
    yield Kernel.of("concat", read_bytes=4 * width, write_bytes=4 * width, inputs=2)
    yield Kernel.of("gemm", operator="bmm", batch=BATCH, m=vectors, n=vectors, k=model.dim)
    yield Kernel.of("gather", rows=BATCH * model.pairs, cols=1, table_rows=BATCH * vectors**2)
    joined = 4 * BATCH * (model.dim + model.pairs)
    yield Kernel.of("concat", read_bytes=joined, write_bytes=joined, inputs=2)


def _interaction_backward(model: Model) -> Iterator[Kernel]:
    vectors, dim = model.vectors, model.dim
    yield Kernel.of("sort", "int64", elements=model.pairs)
    yield Kernel.of("scatter", operator="index_put", rows=model.pairs, cols=BATCH, table_rows=vectors**2)
    for name in ("slice", "zeros", "index"):
        yield _pointwise(name, BATCH * model.pairs, reads=1)
    yield Kernel.of("gemm", operator="bmm", batch=BATCH, m=dim, n=vectors, k=vectors)
    yield Kernel.of("gemm", operator="bmm", batch=BATCH, m=vectors, n=dim, k=vectors)
    yield _pointwise("add", BATCH * vectors * dim, reads=2)
    yield _pointwise("add", BATCH * dim, reads=2)


def _layer_backward(inputs: int, outputs: int, *, first: bool) -> Iterator[Kernel]:
    yield _pointwise("threshold_backward", BATCH * outputs, reads=2)
    if not first:
        yield Kernel.of("gemm", operator="dgrad", batch=1, m=BATCH, n=inputs, k=outputs)
    yield Kernel.of("gemm", operator="wgrad", batch=1, m=outputs, n=inputs, k=BATCH)
    yield Kernel.of("reduce", operator="sum", rows=outputs, cols=BATCH)
    yield _pointwise("add", outputs, reads=2)
    yield _pointwise("add", inputs * outputs, reads=2)


def _loss() -> Iterator[Kernel]:
    yield Kernel.of("copy_h2d", bytes=4 * BATCH)
    yield Kernel.of("reduce", operator="mean", rows=1, cols=BATCH)
    for name in ("loss", "ones_like", "loss_backward", "div"):
        yield _pointwise(name, BATCH, reads=1)


def _lookup(model: Model, family: str) -> Kernel:
    tables: Sequence[TableLookup] = [
        TableLookup(rows, model.dim, BATCH, model.pooling, IndexDistribution.parse(model.indices, model.file))
        for rows in model.rows
    ]
    lookup = Lookup(tuple(tables), optimizer="sgd", update=SCATTERED)
    return Kernel(family, (), "fp32", operator=family, lookup=lookup)
