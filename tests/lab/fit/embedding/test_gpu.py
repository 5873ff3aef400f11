"""The fit of lookup kernels: what it leaves out together, and that parts find their own coefficients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.fit.embedding.gpu import (
    BACKWARDS,
    MeasuredKernel,
    fit_coefficients,
    predict_with,
)
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.embedding.gpu import GpuTimes, shipped_coefficients
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

V100 = load_gpu("V100-SXM2-32G")
SIZES = ((128, 3.0), (128, 40.0), (4096, 10.0), (65536, 20.0))


def _point(family: str, batch: int, pooling: float) -> MeasuredKernel:
    table = TableLookup(10**6, 32, batch, pooling, IndexDistribution.zipf(1.05))
    return MeasuredKernel("a", V100, Kernel(family, lookup=Lookup((table,) * 4)), 1.0)


def test_forwards_and_backwards_of_one_trace_are_left_out_together() -> None:
    point = _point("embedding", 128, 3.0)
    assert replace(point, source="trace" + BACKWARDS).origin == replace(point, source="trace").origin


def test_coefficients_of_the_parts_are_found_again_from_their_times() -> None:
    pytest.importorskip("scipy")
    truth = replace(shipped_coefficients(), row_cycles=900.0, pass_us=16.0, update_us=18.0)
    points = []
    for batch, pooling in SIZES:
        for family in ("embedding", "embedding_backward"):
            point = _point(family, batch, pooling)
            sums = EmbeddingModel(V100, truth).launches(point.kernel)
            arranged_us = float(GpuTimes(V100, truth).arrange_us(sums).sum()) if "back" in family else 0.0
            time_us = float(predict_with(truth, [point])[0])
            points.append(replace(point, source=family, time_us=time_us, arranged_us=arranged_us))
    fitted = fit_coefficients(points)
    assert fitted.row_cycles == pytest.approx(900, rel=0.15)
    assert fitted.pass_us == pytest.approx(16, rel=0.15)
    assert fitted.update_us == pytest.approx(18, rel=0.2)
    assert predict_with(fitted, points) == pytest.approx([p.time_us for p in points], rel=0.08)
