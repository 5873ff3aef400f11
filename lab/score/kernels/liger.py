"""Operators of language models by eager, compiled and fused kernels (liger_kernels.csv)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.datasets.liger import FILE, Row, kernels_of, rows
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import batches
from stepsight.kernels.models import KernelModels
from stepsight.score import BLIND, CHOSEN, Score

TOPIC = "kernels"
NAME = "liger_kernels"
SEEN = frozenset({"A100-SXM4-80G", "H100-SXM-80G"})
"""GPUs whose readings were in sight when the kernels of each operator were listed."""
FLUSHED = 0.5
"""Of the L2 cache, what lies in it unwritten after the flush before a reading; kernels' lines replace it."""


def liger_scores(data: Path) -> list[Score]:
    """One line for all readings, then one per operator; no constant is fitted on them."""
    if not (data / "kernels" / FILE).is_file():
        return []
    found, left_out = rows(data)
    if not found:
        return []
    predicted = predicted_us(found)
    reasons = ", ".join(f"{n} {why}" for why, n in sorted(left_out.items(), key=lambda item: -item[1]))
    return [_line(NAME, found, predicted, np.arange(len(found)), reasons), *_by_operator(found, predicted)]


def figures(data: Path) -> dict[str, Any]:
    """Rows, error, and rows that are not scored, by reason; nothing where the file is absent."""
    lines = liger_scores(data)
    if not lines:
        return {}
    _, left_out = rows(data)
    return {"rows": lines[0].rows, "gmae": lines[0].gmae, "mape": lines[0].mape, "left_out": left_out}


def predicted_us(found: Sequence[Row]) -> FloatArray:
    """What events around each row's kernels would read."""
    total = np.zeros(len(found))
    for gpu in dict.fromkeys(row.gpu for row in found):
        mine = [i for i, row in enumerate(found) if row.gpu == gpu]
        spec = load_gpu(gpu)
        asked = kernels_of([found[i] for i in mine])
        times = dict(zip(asked, KernelModels.for_gpu(spec).estimate(asked).time_us.tolist(), strict=True))
        unwritten = FLUSHED * spec.l2_mb * 2**20
        pairs = (zip(one.positions, one.bytes, strict=True) for one in batches(asked))
        moved = {asked[at]: float(bytes_) for each in pairs for at, bytes_ in each}
        for i in mine:
            kernels = found[i].kernels
            flushed_us = min(unwritten, sum(moved[k] for k in kernels)) / (spec.memory_gbps * 1e3)
            total[i] = sum(times[k] for k in kernels) + spec.kernel_gap_us * (len(kernels) - 1) + flushed_us
    return total


def _by_operator(found: Sequence[Row], predicted: FloatArray) -> Iterator[Score]:
    keys = [f"{row.name} {row.provider} {row.mode} {row.gpu}" for row in found]
    for key in sorted(set(keys)):
        at = np.array([i for i, other in enumerate(keys) if other == key])
        yield _line(f"liger: {key}", found, predicted, at, "")


def _line(name: str, found: Sequence[Row], predicted: FloatArray, at: IntArray, note: str) -> Score:
    measured = [found[int(i)].time_us for i in at]
    exposure = CHOSEN if any(found[int(i)].gpu in SEEN for i in at) else BLIND
    return Score.of(TOPIC, name, predicted[at], measured, "above the host's time",
                    exposure=exposure, kind="liger", note=note)  # fmt: skip
