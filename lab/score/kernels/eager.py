"""Softmax, norms and element-wise operators of eager fp32 models, forward and backward, on eleven GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.eager import FILE, EagerRow, eager_rows, read_times
from lab.fit.kernels.boards import SLOW_RUNS
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel
from stepsight.score import FIT, Score

TOPIC = "kernels"
ABOVE_US = 50.0
NVIDIA_BAR, AMD_BAR = 0.10, 0.15
NINETY = 1.645
LEAST_ROWS = 3


def eager_scores(data: Path) -> list[Score]:
    """One line per GPU, kind and direction. Nothing is fitted to a row: a handful of constants were read
    off medians over all GPUs and models."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    groups: dict[tuple[str, str, str], list[tuple[tuple[Kernel, ...], float]]] = {}
    for row in eager_rows(read_table(path)):
        for direction, kernels, time in _ways(row):
            if kernels and time > ABOVE_US and (row.device, row.model) not in SLOW_RUNS:
                groups.setdefault((row.gpu, row.kind, direction), []).append((kernels, time))
    return list(_scored(groups))


def _ways(row: EagerRow) -> Iterator[tuple[str, tuple[Kernel, ...], float]]:
    yield "forward", row.forward, row.forward_us
    yield "backward", row.backward, row.backward_us


def _scored(groups: dict[tuple[str, str, str], list[tuple[tuple[Kernel, ...], float]]]) -> Iterator[Score]:
    for (gpu, kind, direction), rows in sorted(groups.items()):
        if len(rows) < LEAST_ROWS:
            continue
        spec = load_gpu(gpu)
        predicted, spread = read_times(KernelModels.for_gpu(spec), [kernels for kernels, _ in rows])
        measured = np.array([time for _, time in rows])
        inside = np.abs(np.log(measured / predicted)) <= NINETY * spread
        yield Score.of(
            TOPIC, f"eager fp32 {kind} {direction} {gpu}", predicted, measured,
            f"operators above {ABOVE_US:.0f} µs",
            gmae_target=AMD_BAR if spec.vendor == "amd" else NVIDIA_BAR,
            note=f"{inside.mean():.0%} inside the 90 % interval", exposure=FIT, kind=f"eager fp32 {kind}",
        )  # fmt: skip
