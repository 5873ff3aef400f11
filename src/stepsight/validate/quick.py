"""Rows that ship with the package: kernels, collectives and whole steps, scored in under a minute.

Every row is a published measurement with its source; their licences (Apache-2.0, BSD) allow to carry them
over. They are few and not tuned for: `python -m lab score all` scores everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import msgspec
import numpy as np

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.predict import predict
from stepsight.program.job import Kernel
from stepsight.program.variants import classify
from stepsight.score import BLIND, CHOSEN, Score
from stepsight.workload.files import parse_workload

TOPIC = "quick"
ROWS = files("stepsight.validate") / "rows"


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A measured kernel. ``dims`` are the sizes of its family, ``kernel`` what ran as its source names it."""

    gpu: str
    family: str
    kernel: str
    dtype: str
    dims: dict[str, float]
    time_us: float
    source: str
    licence: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A measured training step: a workload file's content, the platform, and milliseconds."""

    name: str
    group: str
    workload: dict[str, object]
    platform: str
    measured_ms: float
    source: str
    licence: str
    exposure: str = CHOSEN


def scores() -> list[Score]:
    """A line for each kind of kernel and each kind of step; needs no data folder."""
    return [*_kernel_scores(kernel_rows()), *_step_scores(step_rows())]


def kernel_rows() -> list[KernelRow]:
    """The kernels that ship."""
    return msgspec.json.decode((ROWS / "kernels.json").read_bytes(), type=list[KernelRow])


def step_rows() -> list[StepRow]:
    """The steps that ship."""
    return msgspec.json.decode((ROWS / "steps.json").read_bytes(), type=list[StepRow])


def _kernel_scores(rows: Sequence[KernelRow]) -> list[Score]:
    found = []
    for family, gpu in dict.fromkeys((row.family, row.gpu) for row in rows):
        mine = [row for row in rows if (row.family, row.gpu) == (family, gpu)]
        kernels = [
            Kernel(
                row.family, tuple(row.dims.items()), row.dtype, operator=row.kernel,
                kind=classify(row.family, row.kernel),
            )
            for row in mine
        ]  # fmt: skip
        predicted = KernelModels.for_gpu(load_gpu(gpu)).estimate(kernels).time_us
        found.append(
            Score.of(
                TOPIC, f"{mine[0].dtype} {family} on {gpu}", predicted, [row.time_us for row in mine],
                "shapes left out of the fit", exposure=BLIND,
            )
        )  # fmt: skip
    return found


def _step_scores(rows: Sequence[StepRow]) -> list[Score]:
    found = []
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        made = [predict(parse_workload(row.workload, row.name), row.platform) for row in mine]
        measured = np.array([row.measured_ms for row in mine])
        inside = sum(p.low_us <= 1e3 * ms <= p.high_us for p, ms in zip(made, measured, strict=True))
        found.append(
            Score.of(
                TOPIC, group, [p.step_time_us / 1e3 for p in made], measured, "steps as published",
                exposure=mine[0].exposure,
                note=f"{inside} of {len(mine)} inside the 90 % interval",
            )
        )  # fmt: skip
    return found
