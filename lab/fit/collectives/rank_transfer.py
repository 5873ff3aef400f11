"""Learn what doubling a group inside a node does to a collective's time.

Bytes per link follow from the bus factors; what is left (more steps, other protocols) is
learned as ln(time ratio) over the message's place on its curve, from machines where both
group sizes were measured. Needs only numpy; used by the fit and by its leave-one-machine-out
validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.fit.collectives.rows import MeasuredRows
from stepsight.collectives.curve import Curve
from stepsight.collectives.extrapolate import curve_position
from stepsight.collectives.roofline import bus_factor
from stepsight.collectives.shapes import NO_SHAPES
from stepsight.estimate import FloatArray

POSITIONS = np.arange(-12.0, 10.0, 2.0)
"""Where on the curve: log2(bandwidth time / latency floor), in steps of two octaves."""
KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
DOUBLINGS = (2, 4)
"""Group sizes to double that the machines of the tables show."""
FEWEST_SIZES = 8
SMOOTHING = 0.09
"""Weight of the squared step between neighbouring positions, against one average machine."""
ROBUST_LN = 0.02
"""Errors below this count squared, above by their size: one stack's odd switch must not rule."""


@dataclass(frozen=True, slots=True)
class DoublingSample:
    """One machine's curve at ``ranks`` against its measured times at twice as many."""

    machine: str
    kind: str
    ranks: int
    position: FloatArray
    ln_ratio: FloatArray


def doubling_samples(rows: MeasuredRows) -> list[DoublingSample]:
    """Every run measured at n and at 2n ranks."""
    key = ("source", "platform", "nccl_version", "dtype", "kind", "ranks")
    runs = {k: run for k, run in rows.groups(key) if len(np.unique(run.bytes)) >= FEWEST_SIZES}
    samples = []
    for (source, platform, version, dtype, kind, ranks), run in runs.items():
        doubled = runs.get((source, platform, version, dtype, kind, 2 * ranks))
        if kind not in KINDS or ranks not in DOUBLINGS or doubled is None:
            continue
        samples.append(_sample(f"{source} {platform}", str(kind), int(ranks), run, doubled))
    return samples


def _sample(machine: str, kind: str, ranks: int, run: MeasuredRows, doubled: MeasuredRows) -> DoublingSample:
    curve = Curve.fit(run.bytes, run.time_us, NO_SHAPES)
    sizes = np.unique(doubled.bytes)
    times = np.array([np.median(doubled.time_us[doubled.bytes == size]) for size in sizes])
    alike = sizes * bus_factor(kind, 2 * ranks) / bus_factor(kind, ranks)
    covered = alike >= 0.99 * curve.sizes[0]
    alike, times = alike[covered], times[covered]
    return DoublingSample(
        machine, kind, ranks, curve_position(curve, alike), np.log(times / curve.time_us(alike))
    )


def fit_doubling(samples: Sequence[DoublingSample]) -> FloatArray:
    """ln(ratio) at `POSITIONS`: least absolute error, every machine with the same weight."""
    runs_of = {s.machine: sum(o.machine == s.machine for o in samples) for s in samples}
    position = np.concatenate([s.position for s in samples])
    target = np.concatenate([s.ln_ratio for s in samples])
    weight = np.concatenate(
        [np.full(len(s.position), 1 / len(s.position) / runs_of[s.machine]) for s in samples]
    )
    n = len(POSITIONS)
    basis = np.stack([np.interp(position, POSITIONS, np.eye(n)[i]) for i in range(n)], axis=1)
    steps = np.diff(np.eye(n), axis=0)
    robust = weight.copy()
    solution = np.zeros(n)
    for _ in range(20):
        normal = basis.T @ (basis * robust[:, None]) + SMOOTHING * robust.mean() * (steps.T @ steps)
        solution = np.linalg.solve(normal, basis.T @ (robust * target))
        robust = weight / np.maximum(np.abs(target - basis @ solution), ROBUST_LN)
    return solution


def fit_rank_transfer(rows: MeasuredRows) -> dict[str, Any]:
    """The record of all doublings for ``curves.json``."""
    samples = doubling_samples(rows)
    doublings = []
    for kind in KINDS:
        for ranks in DOUBLINGS:
            alike = [s for s in samples if s.kind == kind and s.ranks == ranks]
            ln_ratio = [round(float(value), 4) for value in fit_doubling(alike)]
            doublings.append({"kind": kind, "ranks": ranks, "runs": len(alike), "ln_ratio": ln_ratio})
    return {"positions": POSITIONS.tolist(), "doublings": doublings}
