"""Kernel models against measurements: shapes left out, GPUs left out, and whole kernel lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.datasets.folder import read_table
from lab.fit.kernels.events import reading_us
from lab.fit.kernels.sources import (
    SERVING_SYSTEMS,
    Measured,
    measured_rows,
    serving_attention,
    serving_gemm,
)
from lab.score.kernels.judged import ABOVE_US, Judged
from lab.score.kernels.left_out import (
    GPU_BAR,
    gpu_scores,
    is_fitted_table,
    refitted_scores,
    source_scores,
    with_all,
)
from stepsight.errors import InputError
from stepsight.estimate import Estimates, IntArray, Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.kernel_times import TableTimes
from stepsight.score import BLIND, CHOSEN, FIT, Score

CLEAR_US = 20.0
"""Serving GEMMs of a left-out GPU are scored above this; below, a few µs of start decide."""
TABLES = ("gemm_fp32", "vector_fp32", "conv_fp32")
JUDGED = ("P100", "V100-PCIE-32G", "A100-PCIE-40G")
"""The GPUs whose fp32 tables carry targets; T4 ran throttled."""

Target = tuple[float, float]
LINEAR: Target = (0.025, 0.06)
BMM: Target = (0.025, 0.06)
VECTOR: Target = (0.05, 0.08)
SERVING_GEMM: Target = (0.03, 0.045)
ATTENTION: Target = (0.06, 0.09)
LEFT_OUT: Target = (0.12, 0.18)


def scores(data: Path, rows: str = "heldout") -> list[Score]:
    """Every score that the folder's tables (and aiconfigurator-core, where installed) allow.

    ``rows``: "heldout" scores the tenth of shapes that no fit saw; "all" every row. Of a folder whose fp32
    products are not those that were fitted, every row is scored.
    """
    from lab.score.kernels.eager import eager_scores
    from lab.score.kernels.half import half_scores
    from lab.score.kernels.liger import liger_scores
    from lab.score.kernels.traced import traced_scores

    measured = list(_event_rows(data))
    products = [p for p in measured if p.batch.family == "gemm" and p.gpu in JUDGED]
    ours = any(is_fitted_table(part) for part in products)
    found = _event_scores(measured, rows if ours else "all", fitted=ours)
    blind: list[Judged] = []
    if rows == "heldout":
        serving, blind = _serving()
        found += serving
    convolutions = [p for p in measured if p.batch.family == "conv"]
    if ours:
        found += refitted_scores(products)
    found += gpu_scores(products, "gemm", GPU_BAR) + gpu_scores(convolutions, "conv") + source_scores(data)
    found += with_all(blind, "gemm bf16", LEFT_OUT) + half_scores(data, rows) + eager_scores(data)
    return found + liger_scores(data) + traced_scores(data)


def figures(data: Path) -> dict[str, dict[str, Any]]:
    """What ``--json`` has by file."""
    from lab.score.kernels import liger

    found = liger.figures(data)
    return {liger.NAME: found} if found else {}


def _event_rows(data: Path) -> Iterator[Measured]:
    for name in TABLES:
        path = data / "kernels" / f"{name}.parquet"
        if path.is_file():
            table = read_table(path)
            yield from measured_rows(table, np.asarray(table["time_us"], dtype=np.float64), path.name)


def _event_scores(measured: Iterable[Measured], rows: str, *, fitted: bool) -> list[Score]:
    """One line per GPU and op; all element-wise ops of a GPU share one. ``fitted``: the fits saw these
    tables, but for the shapes held out."""
    exposure = CHOSEN if rows == "heldout" else FIT if fitted else BLIND
    lines: dict[tuple[str, str, str], list[Judged]] = {}
    for part in measured:
        op = "all ops" if part.batch.family == "elementwise" else part.variant
        compared = _compare(part, rows)
        if len(compared.measured):
            lines.setdefault((part.batch.family, op, part.gpu), []).append(compared)
    return [
        Judged.pooled(f"{family} fp32 {op} {gpu}", parts, parts[0].used, f"{family} fp32 {op}").score(
            _event_target(family, op, gpu), exposure=exposure
        )
        for (family, op, gpu), parts in lines.items()
    ]


def _event_target(family: str, op: str, gpu: str) -> Target | None:
    if gpu not in JUDGED or family == "conv":
        return None
    return {"linear": LINEAR, "bmm": BMM}.get(op, VECTOR)


def _compare(part: Measured, rows: str) -> Judged:
    """One op on one GPU, with the shipped models, as the command line answers."""
    shown = part.time_us > (ABOVE_US if part.timed_by_events else 0.0)
    used = f"above {ABOVE_US:.0f} µs" if part.timed_by_events else "all sizes"
    if rows == "heldout":
        shown &= part.held_out
        pairs = part.batch.family == "gemm" and part.stacks
        used = f"{'whole (n, k) pairs' if pairs else 'shapes'} left out, {used}"
    kind = f"{part.batch.family} {part.batch.dtype} {part.variant}"
    name = f"{kind} {part.gpu}"
    if part.stacks:
        name += f" {part.stacks[0]}"
        kind += ", one stack"
    at = np.nonzero(shown)[0]
    times = _times(part, at, KernelModels.for_gpu(load_gpu(part.gpu)))
    return Judged.of(name, times.time_us, part.time_us[at], times.spread, used, kind)


def _times(part: Measured, at: IntArray, models: KernelModels) -> TableTimes:
    times = TableTimes(len(at))
    batch = replace(part.batch.take(at), positions=np.arange(len(at)))
    if not len(at):
        return times
    if part.stacks is None:
        times.put(batch, models.estimate_batch(batch), models)
        if part.timed_by_events:
            times.time_us = reading_us(models, batch, times.time_us)
        return times
    wanted = part.batch.family, part.batch.dtype, models.spec.name
    model = next(m for m in models.shipped if (m.family, m.dtype, m.machine.name) == wanted)
    time_us, _ = model.time_us(batch, model.machine, [part.stacks[int(i)] for i in at])
    times.put(batch, Estimates.uniform(time_us, Source.LEARNED, model.spread), models)
    return times


def _gpu_left_out(parts: Iterable[Measured]) -> Iterator[Judged]:
    """Each GPU timed by the models of the others alone, as an unmeasured GPU would be."""
    for part in parts:
        spec = load_gpu(part.gpu)
        models = KernelModels.for_gpu(spec)
        strangers = tuple(
            m
            for m in models.shipped
            if (m.machine.architecture, m.machine.sms) != (spec.architecture, spec.sms)
        )
        at = np.nonzero(part.time_us > CLEAR_US)[0]
        answer = KernelModels(spec, strangers, models.streams).estimate_batch(part.batch.take(at))
        kind = f"GPU left out: gemm {part.batch.dtype} {part.variant}"
        used = f"all shapes above {CLEAR_US:.0f} µs"
        yield Judged.of(f"{kind} {part.gpu}", answer.time_us, part.time_us[at], answer.spread, used, kind)


def _serving() -> tuple[list[Score], list[Judged]]:
    """GEMM and attention of the aiconfigurator-core tables; nothing where it is not installed."""
    found: list[Score] = []
    blind: list[Judged] = []
    try:
        for gpu in SERVING_SYSTEMS:
            gemm = list(serving_gemm(gpu, "bf16"))
            judged = SERVING_GEMM if gpu in ("A100-SXM4-80G", "H100-SXM-80G") else None
            found += _stacks("gemm bf16", gpu, gemm, judged)
            found += _stacks("gemm fp8", gpu, list(serving_gemm(gpu, "fp8")), None)
            found += _stacks("attention bf16", gpu, list(serving_attention(gpu)), ATTENTION)
            blind += _gpu_left_out(gemm[:1])
    except InputError as error:
        if "aiconfigurator" not in error.where:
            raise
    return found, blind


def _stacks(what: str, gpu: str, parts: Sequence[Measured], target: Target | None) -> list[Score]:
    """One line per software stack, and the bar on all of them together."""
    compared = [_compare(part, "heldout") for part in parts]
    if not compared:
        return []
    together = Judged.pooled(
        f"{what} {gpu}, all stacks", compared, compared[0].used, f"{what}, all stacks of a GPU"
    )
    return [together.score(target), *(line.score() for line in compared)]
