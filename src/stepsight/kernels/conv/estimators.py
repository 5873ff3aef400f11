"""Convolutions as estimators: which kernel a library has for each, and who times it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from stepsight.estimate import Estimates
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.conv.grouped import grouped_estimates
from stepsight.kernels.conv.products import (
    CONVOLUTIONS,
    as_convolution,
    as_product,
    beyond_tables,
    faster,
    fastest_estimates,
    is_pointwise,
    turned,
)
from stepsight.kernels.conv.tiled import has_tensor_cores, tiled_estimates, with_copies
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.roofline import BoolArray


class TimesProducts(Protocol):
    """Times the matrix products that convolutions are made of."""

    def estimate(self, batch: Batch) -> Estimates: ...


@dataclass(frozen=True, slots=True)
class Grouped:
    """Convolutions with channels in groups, depthwise ones among them."""

    spec: GpuSpec

    def handles(self, batch: Batch) -> BoolArray:
        if batch.family not in CONVOLUTIONS:
            return np.zeros(len(batch), dtype=bool)
        return np.asarray(batch.dims["groups"] > 1)

    def estimate(self, batch: Batch) -> Estimates:
        return grouped_estimates(batch, self.spec)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Windows of 1×1: products over pixels. Where images lie by channel, libraries have kernels with pixels
    as rows and with pixels as columns; tensor cores read images by pixel, which makes pixels the rows."""

    spec: GpuSpec
    products: TimesProducts

    def handles(self, batch: Batch) -> BoolArray:
        return is_pointwise(batch) if batch.family in CONVOLUTIONS else np.zeros(len(batch), dtype=bool)

    def estimate(self, batch: Batch) -> Estimates:
        product = as_product(batch)
        answer = self.products.estimate(product)
        if not has_tensor_cores(batch.dtype, self.spec):
            if batch.family != "conv_wgrad":
                answer = faster(answer, self.products.estimate(turned(product)))
            return as_convolution(answer)
        tabled = with_copies(as_convolution(answer), batch, self.spec)
        # Tables of products hold few columns under millions of rows; kernels for images are made for them.
        # Rows of one dimension go to a library of products.
        tiled = tiled_estimates(batch, self.spec)
        image = np.where(batch.dims["h"] > 1, tiled.time_us, np.inf)
        answer = faster(tabled, replace(tiled, time_us=image))
        return _or_fp32(answer, batch, self._in_fp32)

    def _in_fp32(self, batch: Batch) -> Estimates:
        product = as_product(batch)
        return as_convolution(
            faster(self.products.estimate(product), self.products.estimate(turned(product)))
        )


@dataclass(frozen=True, slots=True)
class FastestAlgorithm:
    """Without tensor cores, what the tables do not hold: the faster of a direct product and Winograd's."""

    spec: GpuSpec
    products: TimesProducts

    def handles(self, batch: Batch) -> BoolArray:
        tabled = has_tensor_cores(batch.dtype, self.spec) or batch.dtype == "fp64"
        if tabled or batch.family not in CONVOLUTIONS:
            return np.zeros(len(batch), dtype=bool)
        return beyond_tables(batch)

    def estimate(self, batch: Batch) -> Estimates:
        return fastest_estimates(batch, self.spec, self.products.estimate)


@dataclass(frozen=True, slots=True)
class Tabled:
    """What the fp32 tables hold."""

    fitted: Fitted

    def handles(self, batch: Batch) -> BoolArray:
        held = batch.family in CONVOLUTIONS and self.fitted.choice(batch.family, batch.dtype) is not None
        return np.full(len(batch), held)

    def estimate(self, batch: Batch) -> Estimates:
        chosen = self.fitted.choice(batch.family, batch.dtype)
        if chosen is None:
            raise ValueError(f"no tables of {batch.family}")
        return self.fitted.learned(batch, chosen)


@dataclass(frozen=True, slots=True)
class OnTensorCores:
    """Implicit products in tiles."""

    spec: GpuSpec
    products: TimesProducts

    def handles(self, batch: Batch) -> BoolArray:
        runs = batch.family in CONVOLUTIONS and has_tensor_cores(batch.dtype, self.spec)
        return np.full(len(batch), runs)

    def estimate(self, batch: Batch) -> Estimates:
        return _or_fp32(tiled_estimates(batch, self.spec), batch, self._in_fp32)

    def _in_fp32(self, batch: Batch) -> Estimates:
        return fastest_estimates(batch, self.spec, self.products.estimate)


def _or_fp32(answer: Estimates, batch: Batch, in_fp32: Callable[[Batch], Estimates]) -> Estimates:
    """TF32 is allowed, not required: fp32's kernels read images by channel, so that they save the copies that
    tensor cores need. Where a convolution moves much for its arithmetic they are faster."""
    copied = (batch.dims["reordered"] > 0) & (batch.dtype == "tf32")
    if not copied.any():
        return answer
    other = in_fp32(replace(batch, dtype="fp32"))
    return faster(answer, replace(other, time_us=np.where(copied, other.time_us, np.inf)))


def convolutions(
    fitted: Fitted, products: TimesProducts, *, tabled: bool
) -> tuple[Grouped | Pointwise | FastestAlgorithm | Tabled | OnTensorCores, ...]:
    """Asked in this order; ``tabled``: also those that the tables of a catalogue's GPU speak for."""
    spec = fitted.spec
    by_principle = Grouped(spec), Pointwise(spec, products), FastestAlgorithm(spec, products)
    return (*by_principle, Tabled(fitted), OnTensorCores(spec, products)) if tabled else by_principle
