"""What the learned correction of a streaming kernel looks at: rows against threads and multiprocessors,
traffic against the cache."""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch


def columns(batch: Batch, spec: GpuSpec) -> dict[str, FloatArray]:
    """Named columns, relative to the GPU, so that one GPU's correction can be asked about another."""
    d = batch.dims
    named = {"cache": np.log(np.maximum(batch.bytes, 1.0) / (spec.l2_mb * 1e6))}
    if "rows" in d and "cols" in d:
        rows, cols = np.maximum(d["rows"], 1.0), np.maximum(d["cols"], 1.0)
        named |= {
            "cols": np.log(cols),
            "row_waves": np.log(rows / spec.sms),
            "power": np.ceil(np.log2(cols)),
            "waste": np.ceil(np.log2(cols)) - np.log2(cols),
            "multiple": _multiple(cols),
        }
        for step in (256, 1024, 2048):
            named[f"waste_{step}"] = np.log(np.ceil(cols / step) * step / cols)
    else:
        elements = np.maximum(d["elements"], 1.0)
        named["waves"] = np.log(elements / (spec.sms * 1024))
    return named


def _multiple(size: FloatArray) -> FloatArray:
    """log2 of the largest power of two up to 4096 that divides the size."""
    whole = np.maximum(size, 1.0).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, 4096).astype(np.float64)))
