"""What-ifs against what is: a trace of one GPU moved to another GPU, whose own trace of the same work exists.

Pairs are found by name: files of one name in sibling folders, and folders that differ by their last parts
only. Both directions are scored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path

import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.anchoring import (
    OperatorStep,
    fit_exponents,
    model_us,
    operator_steps,
    ordered_pairs,
    pair_samples,
)
from stepsight.errors import InputError, StepsightError
from stepsight.hardware.spec import GpuSpec
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import predict_job
from stepsight.prediction.traced.anchoring import SHIPPED, Exponents, anchored, moved, same_gpu
from stepsight.prediction.traced.predict import TracedStep, traced_step
from stepsight.score import CHOSEN, FIT, Score
from stepsight.simulate.timeline import simulate
from stepsight.trace.files import SUFFIXES
from stepsight.trace.run import TraceRun, load_trace, measured_step_us

TARGET = 0.12
OPERATORS = "operators of"
"""How the names of pairs of operator lists begin."""
WORST = 6
_LEFT_OUT = "ordered pairs of GPUs, exponents fitted without the second GPU"
_NUMBERS = re.compile(r"(_n\d+|_\d+)+$")
"""What tells folders of one workload apart: host and process numbers at their end."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """One ordered pair; times in ms. ``datasheet_ms`` scales the measured step by peaks and bandwidth.

    ``low_ms`` and ``high_ms`` are the anchored prediction's interval.
    """

    name: str
    source: str
    target: str
    traced_ms: float
    measured_ms: float
    predicted_ms: float
    models_ms: float
    datasheet_ms: float
    low_ms: float = 0.0
    high_ms: float = float("inf")
    training: bool = False

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.low_ms <= self.measured_ms <= self.high_ms

    def line(self) -> str:
        """The row in words."""
        names = ("anchored", "models", "data sheets")
        values = (self.predicted_ms, self.models_ms, self.datasheet_ms)
        parts = zip(names, values, strict=True)
        errors = ", ".join(f"{name} {value / self.measured_ms - 1:+.1%}" for name, value in parts)
        moved = f"{self.source} {self.traced_ms:.2f} ms → {self.target} {self.measured_ms:.2f} ms"
        return f"{self.name}: {moved}: {errors}" + ("" if self.inside else "; outside its interval")


def pair_rows(folder: Path) -> list[PairRow]:
    """Every ordered pair of traces under a folder."""
    found: list[PairRow] = []
    for name, members in _groups(folder).items():
        runs = [run for run in map(_loaded, members) if run is not None]
        for a, b in permutations(runs, 2):
            row = _pair(name, a, b)
            if row is not None:
                found.append(row)
    return found


def _groups(folder: Path) -> dict[str, list[Path]]:
    """Paths that are traces of one workload, by its name."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        groups[_NUMBERS.sub("", path.name)].append(path)
        inside = [p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES)]
        for file in sorted(inside):
            if file.parent.parent == path:
                groups[f"{path.name}/{file.name.split('.')[0]}"].append(file)
    return {name: found for name, found in groups.items() if len(found) > 1}


def _loaded(path: Path) -> TraceRun | None:
    try:
        return load_trace(path)
    except StepsightError:
        return None


def _pair(name: str, a: TraceRun, b: TraceRun) -> PairRow | None:
    there, here = traced_step(b), traced_step(a)
    if same_gpu(here.own.spec.gpu, there.own.spec.gpu) or not _like(a, b):
        return None
    traced_us, measured_us = measured_step_us(a), measured_step_us(b)
    moved = here.on(there.own).predicted()
    models = traced_step(a, there.own, models_only=True)
    return PairRow(
        name, here.own.spec.gpu.name, there.own.spec.gpu.name, traced_us / 1e3, measured_us / 1e3,
        moved.step_time_us / 1e3, _step_us(models) / 1e3,
        traced_us / 1e3 * by_datasheet(here.own.spec.gpu, there.own.spec.gpu),
        moved.low_us / 1e3, moved.high_us / 1e3, "tracelens" not in name,
    )  # fmt: skip


def _like(a: TraceRun, b: TraceRun) -> bool:
    """Whether two traces are of the same work: as many operators, give or take versions."""
    counts = [len(r.linked.ops) / max(len(r.steps), 1) for r in (a.ranks[0], b.ranks[0])]
    return 0.8 < counts[0] / max(counts[1], 1.0) < 1.25 and a.world_size == b.world_size


def _step_us(step: TracedStep) -> float:
    job = step.job
    return simulate(job.job, step.platform, replay=step.replayed, steps=step.steps, seen=job.seen).step_us


def by_datasheet(old: GpuSpec, new: GpuSpec, dtype: str = "fp16") -> float:
    """What people do without a tool: between the ratios of the precision's peak and of bandwidth."""
    ratios = [old.memory_gbps / new.memory_gbps, old.peak_flops(dtype) / new.peak_flops(dtype)]
    return float(np.exp(np.mean(np.log(ratios))))


def pair_scores(found: Sequence[PairRow]) -> list[Score]:
    """The pairs as lines of the scoreboard: of traces, and of operator lists by training and inference.

    Kernel models of boards were fitted on products of the operator lists.
    """
    lists = [r for r in found if r.name.startswith(OPERATORS)]
    traces = [r for r in found if r not in lists]
    groups = (
        ("traces", traces, "ordered pairs of traces of one workload", CHOSEN),
        ("operators, training", [r for r in lists if r.training], _LEFT_OUT, FIT),
        ("operators, inference", [r for r in lists if not r.training], _LEFT_OUT, FIT),
    )
    return [line for name, rows, used, how in groups if rows for line in _scores(name, rows, used, how)]


def _scores(name: str, found: Sequence[PairRow], used: str, exposure: str) -> list[Score]:
    measured = [r.measured_ms for r in found]
    inside = sum(r.inside for r in found) / len(found)
    worst = sorted(found, key=lambda r: -abs(np.log(r.predicted_ms / r.measured_ms)))[:WORST]
    note = f"{inside:.0%} inside the 90 % interval; worst: " + "; ".join(r.line() for r in worst)
    ours = f"another GPU, {name}, anchored"
    return [
        Score.of(
            "traces", ours, [r.predicted_ms for r in found], measured, used, mape_target=TARGET, note=note,
            exposure=exposure,
        ),
        Score.of(
            "traces", f"another GPU, {name}, models only", [r.models_ms for r in found], measured, used,
            exposure=exposure,
        ),
        Score.of(
            "traces", f"another GPU, {name}, data sheets", [r.datasheet_ms for r in found], measured, used,
            exposure=exposure, predictor="data sheets", same_rows_as=ours,
        ),
    ]  # fmt: skip


DTYPE = "fp32"


def operator_pair_rows(data: Path) -> Iterator[PairRow]:
    """Every ordered pair of GPUs of every workload, training and inference."""
    steps = operator_steps(data)
    weights = _left_out(steps) if _is_fitted(data) else {}
    for a, b in ordered_pairs(steps):
        if a.parts:
            yield _operator_row(a, b, weights.get(b.gpu) or SHIPPED)


def _is_fitted(data: Path) -> bool:
    """Whether the folder is the one that the shipped exponents were fitted from; others took no part."""
    try:
        return data.resolve() == data_folder().resolve()
    except InputError:
        return False


def _left_out(steps: list[OperatorStep]) -> dict[str, Exponents]:
    """The exponents for each GPU, fitted without it."""
    samples = list(pair_samples(steps))
    kept = {
        gpu: [s for s in samples if gpu not in (s.source, s.target)] for gpu in {s.target for s in samples}
    }
    return {gpu: fit_exponents(mine) for gpu, mine in kept.items() if mine}


def _operator_row(a: OperatorStep, b: OperatorStep, weights: Exponents) -> PairRow:
    here, there = _platform(a.gpu), _platform(b.gpu)
    job = a.job(model_us(a, a.gpu))
    job_there, ready = moved(anchored(job, here, weights), here, there)
    answer = predict_job(job_there.job, ready, steps=1, seen=job_there.seen)
    by_models = float(np.sum(model_us(a, b.gpu)))
    return PairRow(
        f"{OPERATORS} {a.name}", a.gpu, b.gpu, a.measured_us / 1e3, b.measured_us / 1e3,
        answer.step_time_us / 1e3, by_models / 1e3,
        a.measured_us / 1e3 * by_datasheet(here.spec.gpu, there.spec.gpu, DTYPE),
        answer.low_us / 1e3, answer.high_us / 1e3, training="train" in a.name,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _platform(gpu: str) -> Platform:
    return load_platform(f"1x{gpu}")
