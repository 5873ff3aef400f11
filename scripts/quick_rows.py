"""Chooses the kernel rows that ``stepsight validate quick`` ships with, from aiconfigurator-core.

Only shapes that no shipped model was fitted on (`lab.fit.kernels.sources`), spread evenly over the
measured times; the choice looks at no prediction.

    scripts/quick_rows.py > src/stepsight/validate/rows/kernels.json
"""

from __future__ import annotations

import json
import sys

import numpy as np

from lab.fit.kernels.sources import SERVING_SYSTEMS, Measured, serving_attention, serving_gemm

LEAST_US = 10.0
PER_GPU = {"gemm": 24, "attention": 12}


def chosen(part: Measured, count: int) -> list[dict[str, object]]:
    """``count`` left-out rows, at even ranks of their measured time."""
    apart = np.flatnonzero(part.held_out & (part.time_us >= LEAST_US))
    ordered = apart[np.argsort(part.time_us[apart], kind="stable")]
    places = np.unique(np.linspace(0, len(ordered) - 1, count).round().astype(int)) if len(ordered) else []
    rows = []
    for i in ordered[places]:
        dims = {name: float(column[i]) for name, column in part.batch.dims.items()}
        rows.append(
            {
                "gpu": part.gpu,
                "family": part.batch.family,
                "dtype": part.batch.dtype,
                "kernel": part.variant,
                "dims": dims,
                "time_us": round(float(part.time_us[i]), 3),
                "source": part.source,
                "licence": "Apache-2.0",
            }
        )
    return rows


def main() -> None:
    rows: list[dict[str, object]] = []
    for gpu in SERVING_SYSTEMS:
        for family, tables in (("gemm", serving_gemm(gpu, "bf16")), ("attention", serving_attention(gpu))):
            first = next((p for p in tables if p.batch.dtype == "bf16"), None)
            if first is not None:
                rows += chosen(first, PER_GPU[family])
    json.dump(rows, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
