"""Matrix products in every dtype: learned tables, batched products by first principles, and corrections."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import Estimates, FloatArray
from stepsight.kernels.columns import Batch, put_together
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.machine import same_board
from stepsight.kernels.roofline import BoolArray, roofline
from stepsight.kernels.streams import HALF
from stepsight.kernels.training_gemms import (
    apply_training_correction,
    batched_estimates,
    is_tensor_core,
    never_longer_than,
    with_narrow_loads,
    without_quantising,
)
from stepsight.program.job import PLAIN
from stepsight.program.variants import Kind

_SINGLE = {Kind("bmm"): PLAIN}


@dataclass(frozen=True, slots=True)
class Products:
    """GEMMs. In half precision batched ones go by first principles, all others by the learned tables."""

    fitted: Fitted

    def handles(self, batch: Batch) -> BoolArray:
        return np.full(len(batch), batch.family == "gemm")

    def estimate(self, batch: Batch) -> Estimates:
        half = batch.dtype in HALF and batch.stacks is None
        many = batch.dims["batch"] > 1
        if not half:  # the fp32 tables hold products that were called batched
            many = many | batch.where(lambda kind: kind.variant == "bmm")
        parts = []
        for variant, rows in (("bmm", np.nonzero(many)[0]), ("linear", np.nonzero(~many)[0])):
            if len(rows):
                part = batch if len(rows) == len(batch) else batch.take(rows)
                if half and variant == "linear":  # a batch of one is a single product
                    part = replace(part, kinds=[_SINGLE.get(kind, kind) for kind in part.kinds])
                batched = half and variant == "bmm"
                parts.append((rows, self._batched(part) if batched else self._tabled(part, variant)))
        return put_together(parts, len(batch))

    def _batched(self, batch: Batch) -> Estimates:
        f = self.fitted
        answer = batched_estimates(batch, f.spec, f.tensor_share(batch.dtype), f.residuals)
        answer = with_narrow_loads(batch, f.spec, answer, own_dtype=True)
        return never_longer_than(batch, f.spec, answer, self._time_us)

    def _tabled(self, batch: Batch, variant: str) -> Estimates:
        f = self.fitted
        chosen = f.choice("gemm", batch.dtype, variant)
        if chosen is None:
            return roofline(batch, f.spec)
        answer = f.learned(batch, chosen)
        if is_tensor_core(batch.dtype):
            own = chosen.models[0].dtype == batch.dtype
            answer = with_narrow_loads(batch, f.spec, answer, own_dtype=own)
            if batch.dtype in HALF and f.residuals and batch.stacks is None:
                own_table = same_board(chosen.models[0].machine.name, f.spec)
                answer = apply_training_correction(batch, f.spec, answer, f.residuals, own_table=own_table)
            answer = never_longer_than(batch, f.spec, answer, self._time_us)
        if batch.dtype == "fp8" and batch.stacks is None and "fp8" in f.spec.peak_tflops:
            in_bf16 = self.estimate(replace(batch, dtype="bf16"))
            answer = without_quantising(batch, f.spec, answer, in_bf16)
        return answer

    def _time_us(self, batch: Batch) -> FloatArray:
        return self.estimate(replace(batch, stacks=None)).time_us
