"""Kernel times of one GPU: a list of estimators, asked in order."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stepsight.estimate import Estimates, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.attention import FusedAttention
from stepsight.kernels.changed_gpu import Rescaled, as_chip, catalogue_gpu
from stepsight.kernels.columns import Batch, batches, put_together
from stepsight.kernels.conv.estimators import convolutions
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.gemms import Products
from stepsight.kernels.learned.model import SHIPPED, LearnedModel, shipped_models
from stepsight.kernels.learned.residual import RESIDUALS_FILE, Residual, load_residuals
from stepsight.kernels.learned.transfer import FILE as BOARDS_FILE
from stepsight.kernels.learned.transfer import NO_BOARDS, Boards, load_boards
from stepsight.kernels.measured import FILE as MEASURED_FILE
from stepsight.kernels.measured import MeasuredKernels
from stepsight.kernels.roofline import BoolArray, Roofline, at_most_peak
from stepsight.kernels.scatters import LongRuns
from stepsight.kernels.streams import FILE as STREAMS_FILE
from stepsight.kernels.streams import Streamed, cached_streams
from stepsight.kernels.vectors import CorrectedStreams, FittedRows, Streams
from stepsight.program.job import Kernel

if TYPE_CHECKING:
    from stepsight.kernels.embedding.cpu.measured import MeasuredLookups

EMBEDDING_FAMILIES = frozenset({"embedding", "embedding_backward"})
ROWS_AT_ONCE = 32_768
"""Kernels timed at a time."""


class KernelEstimator(Protocol):
    """Times kernels of some families by more than columns of sizes: lookups, a calibrated machine."""

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates: ...


class Estimator(Protocol):
    """Times kernels given as columns."""

    def handles(self, batch: Batch) -> BoolArray:
        """Which kernels of the batch it times."""
        ...

    def estimate(self, batch: Batch) -> Estimates:
        """Times of kernels that it handles."""
        ...


def estimators(fitted: Fitted, known: KernelModels | None) -> tuple[Estimator, ...]:
    """Who times a kernel: the first that handles it.

    ``known``: the models of the catalogue's GPU, where ``fitted.spec`` is one with changed figures.
    """
    if known is not None:
        rescaled = Rescaled(fitted.spec, known.spec, known.estimate_batch)
        by_principle = convolutions(fitted, rescaled, tabled=False)
        others = LongRuns(fitted.spec), rescaled, Roofline(fitted.spec)
        return (*by_principle, FusedAttention(fitted, tabled=False), *others)
    products = Products(fitted)
    return (
        *convolutions(fitted, replace(products, of_images=True), tabled=True),
        FusedAttention(fitted, tabled=True),
        products,
        LongRuns(fitted.spec),
        CorrectedStreams(fitted),
        FittedRows(fitted),
        Streams(fitted),
        Roofline(fitted.spec),
    )


@dataclass(slots=True)
class KernelModels:
    """Kernel times on one GPU: device time only, without launch or host.

    ``measured`` are the models of a calibrated platform, which then answer for all but lookups.
    ``known`` are those of the catalogue's GPU where this is one with changed figures (`changed_gpu`);
    ``given`` is then that GPU as it was given.
    """

    spec: GpuSpec
    shipped: tuple[LearnedModel, ...] = ()
    streams: tuple[Streamed, ...] = ()
    measured: KernelEstimator | None = None
    residuals: tuple[Residual, ...] = ()
    boards: Boards = NO_BOARDS
    known: KernelModels | None = None
    given: GpuSpec | None = None
    _embedding: KernelEstimator | None = field(default=None, repr=False)
    fitted: Fitted = field(init=False, repr=False)
    _estimators: tuple[Estimator, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.fitted = Fitted(self.spec, self.shipped, self.streams, self.residuals, self.boards)
        self._estimators = estimators(self.fitted, self.known)

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> KernelModels:
        """The shipped models for this GPU, or its relatives' carried over by the specification."""
        catalogued = catalogue_gpu(spec)
        if catalogued is None:
            return cls._shipped(spec)
        return replace(
            cls._shipped(as_chip(spec, catalogued)), known=cls._shipped(catalogued), given=spec,
        )  # fmt: skip

    @classmethod
    def _shipped(cls, spec: GpuSpec) -> KernelModels:
        return cls(
            spec,
            shipped_models(),
            cached_streams(SHIPPED / STREAMS_FILE),
            residuals=load_residuals(SHIPPED / RESIDUALS_FILE),
            boards=load_boards(SHIPPED / BOARDS_FILE),
        )

    @classmethod
    def load(cls, folder: Path, spec: GpuSpec) -> KernelModels:
        """The models that calibration left in a platform's folder; the shipped ones where it has none."""
        from stepsight.kernels.embedding.cpu.measured import CalibratedLookups

        models = cls.for_gpu(spec)
        if (folder / "kernels" / MEASURED_FILE).is_file():
            models.measured = MeasuredKernels.load(folder)
        lookups = CalibratedLookups.load(folder)
        models._embedding = lookups if lookups.models else None
        return models

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Times of many kernels at once, in the order given."""
        parts, speed = [], self.spec.speed
        for batch in batches(kernels):
            by_kernel = self._embedding_model() if batch.family in EMBEDDING_FAMILIES else self.measured
            if by_kernel is not None:
                found = by_kernel.estimate([kernels[i] for i in batch.positions])
            else:
                found = self.estimate_batch(batch)
            if speed != 1.0:
                found = at_most_peak(replace(found, time_us=found.time_us / speed), batch, self.spec)
            parts.append((batch.positions, found))
        return put_together(parts, len(kernels))

    def estimate_batch(self, batch: Batch) -> Estimates:
        """Times of one family's kernels given as columns (no embedding families)."""
        if len(batch) == 0:
            return Estimates.uniform(np.zeros(0), Source.DEFAULT, 0.0)
        if len(batch) > ROWS_AT_ONCE:
            ranges = np.split(np.arange(len(batch)), range(ROWS_AT_ONCE, len(batch), ROWS_AT_ONCE))
            return put_together(
                [(rows, self.estimate_batch(batch.take(rows))) for rows in ranges], len(batch)
            )
        parts, left = [], np.arange(len(batch))
        for estimator in self._estimators:
            part = batch if len(left) == len(batch) else batch.take(left)
            handled = estimator.handles(part)
            if not handled.any():
                continue
            mine = part if handled.all() else part.take(np.nonzero(handled)[0])
            parts.append((left[handled], estimator.estimate(mine)))
            left = left[~handled]
            if not len(left):
                break
        return at_most_peak(put_together(parts, len(batch)), batch, self.given or self.spec)

    def measured_lookups(self, operator: str) -> MeasuredLookups | None:
        """Lookups with an operator as they were measured for this platform; None where none were at all."""
        from stepsight.kernels.embedding.cpu.measured import CalibratedLookups

        return self._embedding.of(operator) if isinstance(self._embedding, CalibratedLookups) else None

    def _embedding_model(self) -> KernelEstimator:
        if self._embedding is None:
            module = importlib.import_module("stepsight.kernels.embedding.model")
            model: KernelEstimator = module.EmbeddingModel.for_gpu(self.given or self.spec)
            self._embedding = model
        return self._embedding
