"""Kernels that stream memory, as estimators: corrected in half precision, tables of rows, and costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates
from stepsight.kernels.columns import Batch, put_together
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.learned.transfer import ROW_FAMILIES
from stepsight.kernels.roofline import BoolArray
from stepsight.kernels.stream_costs import STREAMS
from stepsight.kernels.streams import HALF, HALF_VARIANT, by_stream, corrected_stream, stream_estimates

C = area("kernels")

LINE_BYTES = 128
"""A cache line."""
MEASURED_POINTWISE = frozenset({"", "add", "elementwise"})


@dataclass(frozen=True, slots=True)
class CorrectedStreams:
    """Half precision, where a correction was fitted; plain element-wise kernels on their own chip only."""

    fitted: Fitted

    def handles(self, batch: Batch) -> BoolArray:
        handled = np.zeros(len(batch), dtype=bool)
        if batch.family not in STREAMS or batch.dtype not in HALF:
            return handled
        for variant, rows in by_stream(batch):
            residual = self.fitted.residual(batch.family, variant or HALF_VARIANT)
            plain = batch.family == "elementwise" and not variant
            handled[rows] = residual is not None and (not plain or residual.same_chip(self.fitted.spec))
        return handled

    def estimate(self, batch: Batch) -> Estimates:
        parts = []
        for variant, rows in by_stream(batch):
            part = batch if len(rows) == len(batch) else batch.take(rows)
            residual = self.fitted.residual(batch.family, variant or HALF_VARIANT)
            if residual is None:
                raise ValueError(f"no correction of {batch.family}")
            answer = corrected_stream(part, self.fitted.spec, residual, variant)
            if batch.family == "elementwise" and not variant:
                other = ~part.where(lambda kind: kind.variant in MEASURED_POINTWISE)
                wide = np.where(other, np.hypot(answer.spread, C.OTHER_OPERATOR_SPREAD), answer.spread)
                answer = replace(answer, spread=wide)
            parts.append((rows, answer))
        return put_together(parts, len(batch))


@dataclass(frozen=True, slots=True)
class FittedRows:
    """Softmax and layer norm whose rows do not begin on cache lines, and layer norms on a tabled board.

    The tables hold arbitrary row lengths; rows of models begin on cache lines and go by their costs.
    """

    fitted: Fitted

    def handles(self, batch: Batch) -> BoolArray:
        chosen = self.fitted.choice(batch.family, batch.dtype) if batch.family in ROW_FAMILIES else None
        if chosen is None:
            return np.zeros(len(batch), dtype=bool)
        if batch.family == "layer_norm" and chosen.models[0].machine.name == self.fitted.spec.name:
            return np.ones(len(batch), dtype=bool)
        return np.asarray(batch.dims["cols"] * batch.element_bytes % LINE_BYTES != 0)

    def estimate(self, batch: Batch) -> Estimates:
        chosen = self.fitted.choice(batch.family, batch.dtype)
        if chosen is None:
            raise ValueError(f"no tables of {batch.family}")
        learned = self.fitted.learned(batch, chosen)
        return replace(learned, spread=np.hypot(learned.spread, C.OTHER_SOURCE_SPREAD))


@dataclass(frozen=True, slots=True)
class Streams:
    """Start, bytes and instructions of every other kernel that streams memory."""

    fitted: Fitted

    def handles(self, batch: Batch) -> BoolArray:
        return np.full(len(batch), batch.family in STREAMS)

    def estimate(self, batch: Batch) -> Estimates:
        measured, own = self.fitted.stream()
        return stream_estimates(batch, self.fitted.spec, measured, own)
