"""Half-precision corrections from Megatron's operators on A100 and GH200, forward and backward.

A fifth of the shapes is left out of every fit. A shape is what the kernel sees: rows that differ only in
how many ranks share the model are one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.megatron import FILE, Operator, edition, operators, possible
from lab.fit.kernels.boost import RESIDUAL_SETTINGS, Settings, fit_residual
from lab.fit.kernels.sources import mixed_sizes
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels import flash2, gemms
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.residual import RESIDUALS_FILE, Residual, save_residuals
from stepsight.kernels.models import KernelModels
from stepsight.kernels.streams import HALF_VARIANT, stream_columns, stream_us
from stepsight.kernels.tiles import BatchedConstants, batched_us
from stepsight.prediction.kernel_times import Table
from stepsight.program.variants import FLASH2, Kind, Role

LEFT_OUT_PERCENT = 20
ATTENTION_SETTINGS = Settings(trees=150, depth=4, rate=0.15)
GEMM_SETTINGS = Settings(trees=100, depth=5, rate=0.2)
BATCHED_SETTINGS = Settings(trees=150, depth=6, rate=0.2)


@dataclass(frozen=True, slots=True)
class Timed:
    """An operator's rows with their times and which of them are left out of the fit."""

    operator: Operator
    time_us: FloatArray
    left_out: npt.NDArray[np.bool_]

    def rows(self, kept: npt.NDArray[np.bool_]) -> Timed:
        at = np.nonzero(kept)[0]
        kernels = tuple(kernel.take(at) for kernel in self.operator.kernels)
        o = self.operator
        return Timed(
            Operator(o.gpu, o.op, o.direction, kernels, o.positions[at]), self.time_us[at], self.left_out[at]
        )


def left_out(operator: Operator, percent: int = LEFT_OUT_PERCENT) -> npt.NDArray[np.bool_]:
    """The shapes that no fit may see, by the sizes of the operator's first kernel."""
    sizes = operator.kernels[0].dims
    return np.asarray(mixed_sizes(sizes, tuple(sizes)) % np.uint64(100) < percent)


def timed_operators(table: Table, where: str) -> Iterator[Timed]:
    """Operators with a time, without the rows that are faster than the GPU can be."""
    for operator in operators(table, where):
        time_us = np.asarray(table[f"{operator.direction}_us"], dtype=np.float64)[operator.positions]
        timed = Timed(operator, time_us, left_out(operator))
        kept = possible(operator, time_us, load_gpu(operator.gpu))
        if kept.any():
            yield timed.rows(kept)


def fit_half(data: Path, out: Path) -> Iterator[Residual]:
    """Every correction of the file, written as one artefact."""
    found = list(
        {
            (r.gpu, r.family, r.variant): r for r in half_residuals(read_table(data / "kernels" / FILE))
        }.values()
    )
    save_residuals(out / RESIDUALS_FILE, found)
    yield from found


def half_residuals(table: Table) -> Iterator[Residual]:
    """The corrections of all families on all GPUs of the table."""
    everything = list(timed_operators(table, FILE))
    source = edition(table)
    for gpu in dict.fromkeys(timed.operator.gpu for timed in everything):
        spec = load_gpu(gpu)
        mine = [timed for timed in everything if timed.operator.gpu == gpu]
        yield from _gemms(spec, source, [t for t in mine if t.operator.kernels[0].family == "gemm"])
        for timed in mine:
            first = timed.operator.kernels[0]
            if first.family in ("attention", "attention_backward"):
                yield _attention(spec, source, timed)
            elif first.family != "gemm":
                yield from _streams(spec, source, timed)


def _attention(spec: GpuSpec, source: str, timed: Timed) -> Residual:
    batch = timed.operator.kernels[0]
    backward = batch.family == "attention_backward"
    return fit_residual(
        batch.family, FLASH2, spec, flash2.columns(batch, spec, backward=backward),
        flash2.base_us(batch, spec, backward=backward), timed.time_us, timed.left_out, source,
        ATTENTION_SETTINGS, two_rates=True,
    )  # fmt: skip


def _streams(spec: GpuSpec, source: str, timed: Timed) -> Iterator[Residual]:
    """One correction for all kernels of an operator: they were measured together."""
    kernels = timed.operator.kernels
    base = np.sum([stream_us(kernel, spec, None)[0] for kernel in kernels], axis=0)
    for kernel in kernels:
        yield fit_residual(
            kernel.family, stream_variant(kernel), spec, stream_columns(kernels[0], spec), base,
            timed.time_us, timed.left_out, source, RESIDUAL_SETTINGS,
        )  # fmt: skip


def stream_variant(batch: Batch) -> str:
    from stepsight.kernels.stream_costs import VARIANTS

    name = batch.kinds[0].variant
    return name if (batch.family, name) in VARIANTS else HALF_VARIANT


def _gemms(spec: GpuSpec, source: str, parts: Sequence[Timed]) -> Iterator[Residual]:
    tables = replace(KernelModels.for_gpu(spec), residuals=())
    groups: dict[str, list[Timed]] = {}
    for timed in parts:
        first = timed.operator.kernels[0]
        batched = bool((first.dims["batch"] > 1).any())
        groups.setdefault(_variant_of(first.kinds[0], batched), []).append(timed)
    for variant, members in groups.items():
        named: list[dict[str, FloatArray]] = []
        base = []
        for timed in members:
            kernels = timed.operator.kernels
            times = [
                batched_us(kernel, spec)
                if variant.startswith(gemms.BATCHED)
                else tables.estimate_batch(kernel).time_us
                for kernel in kernels
            ]
            base.append(np.sum(times, axis=0))
            added = np.full(len(kernels[0]), float(kernels[0].kinds[0].variant == "baddbmm"))
            named.append(gemms.columns(gemms.forward_sizes(kernels[0]), added, spec))
        joined = {key: np.concatenate([part[key] for part in named]) for key in named[0]}
        yield fit_residual(
            "gemm", variant, spec, joined, np.concatenate(base), np.concatenate([t.time_us for t in members]),
            np.concatenate([t.left_out for t in members]), source,
            BATCHED_SETTINGS if variant.startswith(gemms.BATCHED) else GEMM_SETTINGS,
        )  # fmt: skip


GPU = "A100-SXM4-80G"
LONG_REDUCTION = (("bmm", "forward"), ("baddbmm", "backward"))
"""Operators whose every product sums over the sequence, not over a head."""
MEMORY = np.arange(0.76, 0.96, 0.02)
MATRIX = np.arange(0.60, 0.80, 0.02)
TRIED_START_US = (3.0, 6.0)
"""Tried values."""


def fit_constants(operators: Iterable[Timed]) -> BatchedConstants:
    """The constants with the least mean error of the logarithm, on rows that are not left out."""
    spec = load_gpu(GPU)
    chosen = [
        timed.rows(~timed.left_out)
        for timed in operators
        if timed.operator.gpu == GPU and (timed.operator.op, timed.operator.direction) in LONG_REDUCTION
    ]

    def error(constants: BatchedConstants) -> float:
        off = []
        for timed in chosen:
            kernels = timed.operator.kernels
            total = np.sum([batched_us(kernel, spec, constants=constants) for kernel in kernels], axis=0)
            off.append(np.abs(np.log(total / timed.time_us)))
        return float(np.concatenate(off).mean())

    tried = [
        BatchedConstants(round(a, 2), round(b, 2), c) for a, b, c in product(MEMORY, MATRIX, TRIED_START_US)
    ]
    return min(tried, key=error)


def _variant_of(kind: Kind, batched: bool) -> str:
    """Which correction a GEMM takes."""
    if kind.role in (Role.DGRAD, Role.WGRAD):
        return gemms.BATCHED_BACKWARD if batched else gemms.BACKWARD
    return gemms.BATCHED if batched else gemms.FORWARD
