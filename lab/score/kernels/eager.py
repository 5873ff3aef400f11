"""Softmax, norms and element-wise operators of eager fp32 models, forward and backward, on eleven GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.eager import FILE, eager_rows, read_times
from lab.fit.kernels.boards import SLOW_RUNS
from lab.score.kernels.judged import Judged
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel
from stepsight.score import FIT, Score

ABOVE_US = 50.0
NVIDIA_BAR, AMD_BAR = 0.10, 0.15
LEAST_ROWS = 3


def eager_scores(data: Path) -> list[Score]:
    """One line per GPU, kind and direction. Nothing is fitted to a row: a handful of constants were read
    off medians over all GPUs and models."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    groups: dict[tuple[str, str, str], list[tuple[tuple[Kernel, ...], float]]] = {}
    for row in eager_rows(read_table(path)):
        ways = (("forward", row.forward, row.forward_us), ("backward", row.backward, row.backward_us))
        for direction, kernels, time in ways:
            if kernels and time > ABOVE_US and (row.device, row.model) not in SLOW_RUNS:
                groups.setdefault((row.gpu, row.kind, direction), []).append((kernels, time))
    return [_score(*key, rows) for key, rows in sorted(groups.items()) if len(rows) >= LEAST_ROWS]


def _score(gpu: str, kind: str, direction: str, rows: list[tuple[tuple[Kernel, ...], float]]) -> Score:
    spec = load_gpu(gpu)
    predicted, spread = read_times(KernelModels.for_gpu(spec), [kernels for kernels, _ in rows])
    measured, kind = np.array([time for _, time in rows]), f"eager fp32 {kind}"
    used = f"operators above {ABOVE_US:.0f} µs"
    judged = Judged.of(f"{kind} {direction} {gpu}", predicted, measured, spread, used, kind)
    return judged.score((AMD_BAR if spec.vendor == "amd" else NVIDIA_BAR, None), exposure=FIT)
