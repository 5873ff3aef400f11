"""Collectives against measurements: sizes, group sizes, stacks and traces that were left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.fit.collectives.rows import CURVE_KEY, UNSTATED, MeasuredRows, read_nccl
from stepsight.collectives.curve import Curve
from stepsight.estimate import FloatArray
from stepsight.score import BLIND, Score, gmae, mape

TOPIC = "collectives"
FEWEST_SIZES = 9
FEWEST_BELOW = 5
"""Sizes that a curve must keep below the cut when its top is left out."""
Timer = Callable[[FloatArray], FloatArray]
Fitter = Callable[[FloatArray, FloatArray], Timer]
Mask = npt.NDArray[np.bool_]


def scores(data: Path) -> list[Score]:
    """Every score that the folder's tables allow; all are on rows that took no part in the fit."""
    folder = data / "collectives"
    from lab.score.collectives.sites import site_scores
    from lab.score.collectives.transfers import pcie_score, transfer_scores

    found: list[Score] = []
    if (folder / "nccl.parquet").is_file():
        nccl = read_nccl(data)
        found += _sizes(nccl) + _group_sizes(nccl) + _stacks(nccl, data) + transfer_scores()
        found += site_scores()
        found.append(pcie_score(data))
    return found


def measured_curves(rows: MeasuredRows, *, stated_only: bool) -> list[tuple[FloatArray, FloatArray]]:
    """Sizes and median times of every curve; ``stated_only``: with its NCCL version and buffer."""
    if stated_only:
        rows = rows.where((rows.nccl_version != UNSTATED) & (rows.in_place != UNSTATED))
    curves = []
    for _, run in rows.groups(CURVE_KEY):
        sizes = np.unique(run.bytes)
        if len(sizes) >= FEWEST_SIZES:
            times = np.array([np.median(run.time_us[run.bytes == size]) for size in sizes])
            curves.append((sizes, times))
    return curves


def every_other(sizes: FloatArray) -> tuple[Mask, Mask]:
    """Fit on the 1st, 3rd, 5th … size, score the ones between."""
    fitted = np.arange(len(sizes)) % 2 == 0
    return fitted, ~fitted & (sizes < sizes[fitted].max())


def six_sizes(sizes: FloatArray) -> tuple[Mask, Mask]:
    """Fit on the six sizes nearest to an even spacing in log2, score all others."""
    wanted = np.linspace(np.log2(sizes[0]), np.log2(sizes[-1]), 6)
    fitted = np.zeros(len(sizes), dtype=bool)
    fitted[[int(np.argmin(np.abs(np.log2(sizes) - at))) for at in wanted]] = True
    return fitted, ~fitted


def below(factor: float) -> Callable[[FloatArray], tuple[Mask, Mask]]:
    """Fit on sizes up to the largest ÷ factor, score those above."""

    def split(sizes: FloatArray) -> tuple[Mask, Mask]:
        fitted = sizes <= sizes[-1] / factor
        return fitted, ~fitted

    return split


def left_out(
    curves: Sequence[tuple[FloatArray, FloatArray]], split: Callable[[FloatArray], tuple[Mask, Mask]],
    fit: Fitter, least: int = 2,
) -> list[tuple[float, float]]:  # fmt: skip
    """GMAE and MAPE of every curve on its left-out sizes."""
    errors = []
    for sizes, times in curves:
        fitted, scored = split(sizes)
        if fitted.sum() >= least and scored.any():
            predicted = fit(sizes[fitted], times[fitted])(sizes[scored])
            errors.append((gmae(predicted, times[scored]), mape(predicted, times[scored])))
    return errors


def _sizes(nccl: MeasuredRows) -> list[Score]:
    found = []
    for stated, which in ((True, "NCCL version stated"), (False, "all runs")):
        curves = measured_curves(nccl, stated_only=stated)
        used = f"curves with ≥ {FEWEST_SIZES} sizes, every other size left out"
        halves = left_out(curves, every_other, _curve)
        between, tenth = f"sizes between, {which}", "sizes between, 90th percentile"
        found += [
            _over_curves(between, halves, used, 0.5, 0.025, "sizes between"),
            _over_curves(f"{tenth}, {which}", halves, used, 0.9, 0.07, tenth),
            replace(
                _over_curves(f"{between}: log-log PCHIP", left_out(curves, every_other, _pchip), used, 0.5),
                predictor="log-log PCHIP",
                same_rows_as=between,
            ),
        ]
        six = left_out(curves, six_sizes, _curve)
        found.append(
            _over_curves(f"six sizes known, {which}", six, "all others", 0.5, 0.038, "six sizes known")
        )
        for factor in (4.0, 16.0):
            above = left_out(curves, below(factor), _curve, FEWEST_BELOW)
            bar, top = 0.057 if factor == 4.0 else None, f"above the range, top factor of {factor:g}"
            found.append(_over_curves(f"{top}, {which}", above, "sizes above it left out", 0.5, bar, top))
    return found


def _group_sizes(nccl: MeasuredRows) -> list[Score]:
    """4 → 8 GPUs on NVSwitch, the doubling learned without any run of the scored machine."""
    from lab.fit.collectives.catalogue import KINDS, POSITIONS, doubling_samples, fit_doubling, nvswitch_rows
    from stepsight.errors import InputError

    try:
        samples = doubling_samples(nvswitch_rows(nccl))
    except InputError:  # aiconfigurator-core is not installed here
        samples = doubling_samples(nccl.where(nccl.nodes == 1))
    found = []
    for kind in KINDS:
        doubled = [s for s in samples if s.kind == kind and s.ranks == 4]
        errors = []
        for machine in sorted({s.machine for s in doubled}):
            others = [s for s in doubled if s.machine != machine]
            if not others:
                continue
            learned = fit_doubling(others)
            for sample in (s for s in doubled if s.machine == machine):
                off = np.exp(np.interp(sample.position, POSITIONS, learned) - sample.ln_ratio)
                errors.append((gmae(off, np.ones_like(off)), mape(off, np.ones_like(off))))
        if errors:
            bar = 0.06 if kind in ("all_reduce", "all_to_all") else None
            used = "runs on NVSwitch at both group sizes, machine left out"
            found.append(_over_curves(f"4 → 8 GPUs, {kind}", errors, used, 0.5, bar, "4 → 8 GPUs"))
    return found


def _stacks(nccl: MeasuredRows, data: Path) -> list[Score]:
    """A machine's curve from other sources' runs on the same machine."""
    from lab.fit.collectives.catalogue import machine_runs, pool
    from stepsight.errors import InputError

    try:
        machines = machine_runs(nccl, data)
    except InputError:
        return []
    errors: dict[str, list[tuple[float, float]]] = {"below 1 MiB": [], "1 – 8 MiB": [], "8 MiB and more": []}
    for runs in machines:
        for run in runs:
            others = pool([other for other in runs if other.source != run.source])
            if others is None or run.forced:
                continue
            least, most = others.curve.range_bytes
            sizes = run.curve.sizes[(run.curve.sizes >= least) & (run.curve.sizes <= most)]
            for name, low, high in (
                ("below 1 MiB", 0, 2**20), ("1 – 8 MiB", 2**20, 2**23), ("8 MiB and more", 2**23, np.inf),
            ):  # fmt: skip
                scored = sizes[(sizes >= low) & (sizes < high)]
                if len(scored):
                    predicted, measured = others.curve.time_us(scored), run.curve.time_us(scored)
                    errors[name].append((gmae(predicted, measured), mape(predicted, measured)))
    return [
        _over_curves(f"another stack's run, {name}", part, "source left out of the pooled curve", 0.5)
        for name, part in errors.items()
        if part
    ]


def _over_curves(
    name: str, errors: Sequence[tuple[float, float]], used: str, quantile: float, bar: float | None = None,
    kind: str = "",
) -> Score:  # fmt: skip
    """One line over many curves: the median (or another quantile) of the curves' errors."""
    table = np.array(errors)
    which = "median" if quantile == 0.5 else f"{quantile:.0%} quantile"
    error = float(np.quantile(table[:, 0], quantile))
    return Score(
        TOPIC, name, len(table), error, float(np.quantile(table[:, 1], quantile)),
        f"{used}; {which} over curves", "" if bar is None else f"GMAE ≤ {bar:.1%}",
        None if bar is None else error <= bar, exposure=BLIND, kind=kind,
    )  # fmt: skip


def _curve(sizes: FloatArray, times: FloatArray) -> Timer:
    return Curve.fit(sizes, times).time_us


def _pchip(sizes: FloatArray, times: FloatArray) -> Timer:
    from scipy.interpolate import PchipInterpolator

    inner = PchipInterpolator(np.log(sizes), np.log(times))
    return lambda wanted: np.asarray(np.exp(inner(np.log(wanted))), dtype=np.float64)
