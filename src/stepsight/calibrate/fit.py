"""From a journal of samples to the models of a platform folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsight.calibrate.bench import fused_bench
from stepsight.calibrate.bench.lookup_bench import ALONE, PHASES, beside_others, table_lookup
from stepsight.calibrate.journal import kernel_from_record, overheads_from_records
from stepsight.calibrate.lookups.table_fit import fit_lookups as fit_tables
from stepsight.calibrate.plan import COLLECTIVES, CONTENTION, HOST, KERNELS, LOOKUPS
from stepsight.calibrate.statistics import CANDIDATES, halves, repeat_error, step_us, typical_us
from stepsight.collectives.files.timings import Timing
from stepsight.errors import StepsightError
from stepsight.hardware.spec import ContentionSpec
from stepsight.kernels.columns import batches
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.kernels.measured import (
    FEWEST,
    Efficiency,
    MeasuredKernels,
    MeasuredProcessor,
    features,
    variant,
)
from stepsight.overheads.operators import OP_CLASSES
from stepsight.overheads.tables import LAUNCH, OpStats, Overheads, Stat
from stepsight.program.job import Kernel

# Host µs around an operator of eager torch on a CPU, a guess where profiled steps do not tell:
# the gap before it, its start to its first kernel, its last kernel to its end, the gap between two
# kernels inside it, and its whole time where it launches none.
FIRST_GUESS: Mapping[str, tuple[float, float, float, float, float]] = {
    "forward": (4.0, 3.0, 2.0, 3.0, 5.0),
    "view": (1.5, 1.0, 1.0, 1.0, 2.0),
    "backward": (1.0, 3.0, 2.0, 2.0, 3.0),
    "optimizer": (5.0, 10.0, 5.0, 3.0, 10.0),
    "collective": (5.0, 20.0, 5.0, 5.0, 20.0),
    "copy": (2.0, 2.0, 1.0, 2.0, 3.0),
}


@dataclass(frozen=True, slots=True)
class Fitted:
    """The models that the microbenchmarks alone give."""

    kernels: MeasuredKernels
    lookups: MeasuredLookups | None
    collectives: tuple[Timing, ...]
    contention: ContentionSpec
    overheads: Overheads
    repeat: Mapping[str, Mapping[str, float]]


def fit_samples(samples: Mapping[str, Sequence[Mapping[str, Any]]], device: str = "cpu") -> Fitted:
    """All models from the samples of each stage."""
    rows = samples.get(KERNELS, ())
    if len(rows) < 20:
        raise StepsightError(
            f"only {len(rows)} kernels were measured; calibrate again with --resume and a longer --budget"
        )
    kernels = [kernel_from_record(r) for r in rows]
    times = [typical_us(r["times_us"]) for r in rows]
    machine = machine_figures(kernels, times)
    return Fitted(
        fit_kernels(kernels, times, machine),
        fit_lookups(samples.get(LOOKUPS, ())),
        tuple(fit_collectives(samples.get(COLLECTIVES, ()))),
        _contention(samples),
        fit_overheads(samples.get(HOST, ()), device),
        repeatability(samples),
    )


def machine_figures(kernels: Sequence[Kernel], times_us: Sequence[float]) -> MeasuredProcessor:
    """The best rate of arithmetic and of large copies that was seen."""
    gflops, gbps = 1.0, 0.1
    for batch in batches(kernels):
        taken = np.array([times_us[i] for i in batch.positions])
        if batch.family == "gemm":
            gflops = max(gflops, float(np.quantile(batch.flops / taken / 1e3, 0.95)))
        elif batch.family in ("copy_d2d", "elementwise"):
            large = batch.bytes > np.quantile(batch.bytes, 0.8)
            gbps = max(gbps, float(np.median(batch.bytes[large] / taken[large] / 1e3)))
    return MeasuredProcessor(round(gflops, 2), round(gbps, 2))


def fit_kernels(
    kernels: Sequence[Kernel], times_us: Sequence[float], machine: MeasuredProcessor
) -> MeasuredKernels:
    """One smooth efficiency per variant with enough samples."""
    groups: dict[str, list[int]] = {}
    for i, kernel in enumerate(kernels):
        groups.setdefault(variant(kernel), []).append(i)
    light = machine.light_us(kernels)
    variants = {}
    for name, members in groups.items():
        if len(members) >= FEWEST:
            ratio = np.log(np.array([times_us[i] for i in members]) / light[members])
            variants[name] = Efficiency.fit(features([kernels[i] for i in members]), ratio)
    return MeasuredKernels(machine, variants, {})


def fit_lookups(rows: Sequence[Mapping[str, Any]]) -> MeasuredLookups | None:
    fused = fused_bench.fit(rows)
    if fused is not None:
        return fused
    forward = [r for r in rows if r["phase"] == "forward"]
    backward = [r for r in rows if r["phase"] == "backward"]
    if len(forward) < FEWEST:
        return None
    tables = [table_lookup(r) for r in forward]
    times = {
        "forward": np.array([typical_us(r["times_us"]) for r in forward]),
        "backward": np.array([typical_us(r["times_us"]) for r in backward]),
    }
    return fit_tables(tables, times, rounds=[r.get("round", 0) for r in forward])


def fit_collectives(rows: Sequence[Mapping[str, Any]]) -> list[Timing]:
    return [Timing(r["kind"], r["ranks"], 1, float(r["bytes"]), step_us(r["times_us"])) for r in rows]


def fit_contention(rows: Sequence[Mapping[str, Any]]) -> ContentionSpec:
    """How many times longer compute takes under a collective, and a collective under compute.

    Alone and together are compared by their lower quartiles over the repeats of one pair of a
    message size and a kind of compute; the median over the pairs is kept.
    """
    pairs: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    largest = max((row.get("bytes", 0) for row in rows), default=0)
    for row in rows:
        if row.get("bytes", 0) < largest / 4:  # over too soon to be seen beside compute
            continue
        pairs.setdefault((row.get("bytes"), row.get("compute")), []).append(row)
    compute, comm = [], []
    for members in pairs.values():

        def low(name: str, members: list[Mapping[str, Any]] = members) -> float:
            return float(np.quantile([m[name] for m in members], 0.25))

        together = max(min(low("comm_us"), low("compute_us")), 1.0)
        lost = max(low("compute_us") - low("compute_alone_us"), 0.0)
        compute.append(1 / (1 - min(lost / together, 0.9)))
        comm.append(max(low("comm_us") / low("comm_alone_us"), 1.0))
    return ContentionSpec(
        round(float(np.median(compute or [1.0])), 3),
        round(float(np.median(comm or [1.0])), 3),
        source="measured by calibrate",
    )


def fit_overheads(rows: Sequence[Mapping[str, Any]], device: str) -> Overheads:
    """Host overheads of the profiled steps; what they never showed is a guess."""
    guess = first_overheads(device)
    return overheads_from_records(rows).over(guess) if rows else guess


def _contention(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> ContentionSpec:
    beside = lookup_slowdowns(samples.get(LOOKUPS, ()))
    return replace(
        fit_contention(samples.get(CONTENTION, ())),
        lookups_forward=beside["forward"],
        lookups_backward=beside["backward"],
    )


def lookup_slowdowns(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By phase, over the tables that were measured together and alone."""
    found = {}
    for phase in PHASES:
        beside = {table_lookup(r): typical_us(r["times_us"]) for r in rows if r["phase"] == phase}
        alone = {table_lookup(r): typical_us(r["times_us"]) for r in rows if r["phase"] == phase + ALONE}
        both = [t for t in alone if t in beside]
        found[phase] = round(beside_others([beside[t] for t in both], [alone[t] for t in both]), 3)
    return found


def first_overheads(device: str) -> Overheads:
    """Host overheads that nobody has measured; those of a GPU's host are the shipped ones."""
    if device != "cpu":
        return Overheads.default()
    classes = {
        name: OpStats(*(Stat(us) for us in (t1, t2, t3, 0.0, t5, whole)))
        for name, (t1, t2, t3, t5, whole) in FIRST_GUESS.items()
    }
    missing = set(OP_CLASSES) - set(classes)
    classes |= dict.fromkeys(missing, classes["forward"])
    return Overheads({}, classes, {LAUNCH: Stat(0.0)}, "a guess: no profiled step shows it", "calibrated")


def repeatability(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """By stage and statistic: how far even and odd repeats of one sample disagree, as a share."""
    result: dict[str, dict[str, float]] = {}
    for stage in (KERNELS, LOOKUPS, COLLECTIVES):
        rows = [r for r in samples.get(stage, ()) if len(r["times_us"][0]) >= 4]
        if rows:
            result[stage] = {
                name: round(float(np.median([repeat_error(halves(r["times_us"][0]), q) for r in rows])), 4)
                for name, q in CANDIDATES.items()
            }
    return result
