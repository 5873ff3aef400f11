"""Kernel models against measurements: shapes left out, GPUs left out, and whole kernel lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.kernels.fit.sources import (
    SERVING_SYSTEMS,
    Measured,
    measured_rows,
    serving_attention,
    serving_gemm,
)
from stepsight.kernels.models import KernelModels
from stepsight.kernels.table_files import TableTimes, read_table
from stepsight.kernels.tables import Rows
from stepsight.platform.gpus import load_gpu
from stepsight.validate.score import Score

TOPIC = "kernels"
ABOVE_US = 60.0
CLEAR_US = 20.0
"""Serving GEMMs of a left-out GPU are scored above this; below, a few µs of start decide."""
TABLES = ("gemm_fp32", "vector_fp32", "conv_fp32")
JUDGED = ("P100", "V100", "A100-40G")
"""The GPUs whose fp32 tables carry targets; T4 ran throttled."""

TARGETS = {"linear": (0.04, 0.06), "bmm": (0.05, 0.08)}
VECTOR_TARGET = (0.05, 0.08)
GEMM_TARGET = (0.03, 0.045)
ATTENTION_TARGET = (0.06, 0.09)
LEFT_OUT_TARGET = (0.12, 0.18)


def scores(data: Path, rows: str = "heldout") -> list[Score]:
    """Every score that the folder's tables (and aiconfigurator-core, where installed) allow.

    ``rows``: "heldout" scores the tenth of shapes that no fit saw; "all" every row, for folders
    that took no part in the fit.
    """
    measured = list(_event_rows(data))
    found = [_score(part, rows) for part in measured]
    blind = list(_gpu_left_out(p for p in measured if p.batch.family == "gemm" and p.gpu in JUDGED))
    if rows == "heldout":
        serving, unseen = _serving()
        found += serving
        blind += unseen
    found += _left_out_scores(blind)
    from stepsight.validate.dlrm_kernels import dlrm_scores

    return [score for score in found if score.rows] + dlrm_scores(data)


def _event_rows(data: Path) -> Iterator[Measured]:
    for name in TABLES:
        path = data / "kernels" / f"{name}.parquet"
        if path.is_file():
            table = read_table(path)
            yield from measured_rows(table, np.asarray(table["time_us"], dtype=np.float64), path.name)


def _score(part: Measured, rows: str) -> Score:
    """One op on one GPU, with the shipped models, as the command line answers."""
    shown = part.time_us > ABOVE_US if part.timed_by_events else np.ones(len(part.time_us), dtype=bool)
    used = f"above {ABOVE_US:.0f} µs" if part.timed_by_events else "all sizes"
    if rows == "heldout":
        shown &= part.held_out
        whole = "whole (n, k) pairs" if part.batch.family == "gemm" and part.stacks else "shapes"
        used = f"{whole} left out, {used}"
    predicted = _predicted(part, shown, KernelModels.for_gpu(load_gpu(part.gpu)))
    gmae, mape = _target(part)
    name = f"{part.batch.family} {part.batch.dtype} {part.variant} {part.gpu}"
    if part.stacks:
        name += f" ({part.stacks[0]})"
    return _scored(name, predicted, part.time_us[shown], used, gmae, mape)


def _scored(
    name: str, predicted: FloatArray, measured: FloatArray, used: str, gmae: float | None, mape: float | None
) -> Score:
    if not len(measured):
        return Score(TOPIC, name, 0, 0.0, 0.0, used)
    return Score.of(TOPIC, name, predicted, measured, used, gmae_target=gmae, mape_target=mape)


def _predicted(part: Measured, shown: np.typing.NDArray[np.bool_], models: KernelModels) -> FloatArray:
    at = np.nonzero(shown)[0]
    stacks = None if part.stacks is None else [part.stacks[int(i)] for i in at]
    batch = part.batch.take(at)
    rows = Rows(part.gpu, type(batch)(batch.family, batch.dtype, batch.dims, batch.names, np.arange(len(at))),
                part.timed_by_events, stacks)  # fmt: skip
    times = TableTimes(len(at))
    times.put(rows, models.estimate_batch(rows.batch, stacks), models)
    return times.time_us


def _target(part: Measured) -> tuple[float | None, float | None]:
    family = part.batch.family
    if part.timed_by_events:
        if part.gpu not in JUDGED or family == "conv":
            return None, None
        return TARGETS.get(part.variant, VECTOR_TARGET)
    if family == "attention":
        return ATTENTION_TARGET
    judged = part.gpu in ("A100-SXM4-80G", "H100-SXM-80G") and part.batch.dtype == "bf16"
    return GEMM_TARGET if judged else (None, None)


@dataclass(frozen=True, slots=True)
class Blind:
    """A GPU's rows as the models of the other GPUs time them."""

    name: str
    predicted: FloatArray
    measured: FloatArray
    used: str


def _gpu_left_out(parts: Iterable[Measured]) -> Iterator[Blind]:
    """Each GPU timed by the models of the others alone, as an unmeasured GPU would be."""
    for part in parts:
        spec = load_gpu(part.gpu)
        models = KernelModels.for_gpu(spec)
        strangers = tuple(
            m
            for m in models.shipped
            if (m.machine.architecture, m.machine.sms) != (spec.architecture, spec.sms)
        )
        above = ABOVE_US if part.timed_by_events else CLEAR_US
        shown = part.time_us > above
        blind = KernelModels(spec, strangers, models.streams)
        kernel_us = blind.estimate_batch(part.batch.take(np.nonzero(shown)[0])).time_us
        path = models.event_path(part.batch.take(np.arange(1)))[0]
        predicted = path.reading_us(kernel_us) if part.timed_by_events else kernel_us
        name = f"gemm {part.batch.dtype} {part.variant} {part.gpu}"
        yield Blind(name, predicted, part.time_us[shown], f"all shapes above {above:.0f} µs")


def _left_out_scores(blind: Sequence[Blind]) -> list[Score]:
    """One line per GPU, and one over all rows of all GPUs."""
    if not blind:
        return []
    found = [_scored(f"GPU left out: {b.name}", b.predicted, b.measured, b.used, None, None) for b in blind]
    predicted = np.concatenate([b.predicted for b in blind])
    measured = np.concatenate([b.measured for b in blind])
    used = f"all rows of the {len(blind)} lines above"
    return [*found, _scored("GPU left out: gemm, all", predicted, measured, used, *LEFT_OUT_TARGET)]


def _serving() -> tuple[list[Score], list[Blind]]:
    """GEMM and attention of the aiconfigurator-core tables; nothing where it is not installed."""
    found: list[Score] = []
    blind: list[Blind] = []
    try:
        for gpu in SERVING_SYSTEMS:
            gemm = list(serving_gemm(gpu, "bf16"))
            found += [_score(part, "heldout") for part in gemm]
            found += [_score(part, "heldout") for part in serving_gemm(gpu, "fp8")]
            found += [_score(part, "heldout") for part in serving_attention(gpu)]
            blind += _gpu_left_out(gemm[:1])
    except InputError as error:
        if "aiconfigurator" not in error.where:
            raise
    return found, blind
