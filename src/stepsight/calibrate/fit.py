"""From a journal of samples to the models of a platform folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stepsight.calibrate.draws import table_lookup
from stepsight.calibrate.journal import (
    ALONE,
    PHASES,
    kernel_from_record,
    overheads_from_records,
    step_us,
    typical_us,
)
from stepsight.calibrate.lookup_fit import fit_lookups
from stepsight.calibrate.session import COLLECTIVES, CONTENTION, HOST, KERNELS, LOOKUPS
from stepsight.collectives.benchmark_files import Timing
from stepsight.constants import area
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
from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.tables import LAUNCH, OP_CLASSES, OpStats, Overheads, Stat, op_class, plain_name
from stepsight.program.job import HostTimes, Kernel
from stepsight.run.ranks import Ranks
from stepsight.trace.events import Event
from stepsight.trace.files import trace_files
from stepsight.trace.kineto import KinetoTrace, in_time_order, read_kineto
from stepsight.trace.launches import NO_OP
from stepsight.trace.link import LinkedTrace, link
from stepsight.trace.program import trace_samples
from stepsight.workload.files import Workload

_CONSTANTS = area("calibrate")
PROFILED_STEPS = _CONSTANTS.whole("PROFILED_STEPS")
STALL_US = _CONSTANTS.number("STALL_US")

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
    repeat: Mapping[str, float]


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
        if row.get("bytes", 0) < largest / 4:  # over too soon to overlap with compute
            continue
        pairs.setdefault((row.get("bytes"), row.get("compute")), []).append(row)
    compute, comm = [], []
    for members in pairs.values():
        comm_us, compute_us, comm_alone_us, compute_alone_us = (
            float(np.quantile([m[name] for m in members], 0.25))
            for name in ("comm_us", "compute_us", "comm_alone_us", "compute_alone_us")
        )
        lost = max(compute_us - compute_alone_us, 0.0) / max(min(comm_us, compute_us), 1.0)
        compute.append(1 / (1 - min(lost, 0.9)))
        comm.append(max(comm_us / comm_alone_us, 1.0))
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
    together = lookup_slowdowns(samples.get(LOOKUPS, ()))
    return replace(
        fit_contention(samples.get(CONTENTION, ())),
        lookups_forward=together["forward"],
        lookups_backward=together["backward"],
    )


def lookup_slowdowns(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By phase, how many times longer the tables that were measured both ways take while all ranks look up.

    All of them together: large ones, which memory limits, count most.
    """
    found = dict.fromkeys(PHASES, 1.0)
    for phase in PHASES:
        together = {table_lookup(r): typical_us(r["times_us"]) for r in rows if r["phase"] == phase}
        alone = {table_lookup(r): typical_us(r["times_us"]) for r in rows if r["phase"] == phase + ALONE}
        both = [t for t in alone if t in together]
        if both:
            ratio = sum(together[t] for t in both) / sum(alone[t] for t in both)
            found[phase] = round(max(ratio, 1.0), 3)
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


def repeatability(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """By stage: how far the medians of even and odd repeats of one sample disagree, as a share."""
    result = {}
    for stage in (KERNELS, LOOKUPS, COLLECTIVES):
        times = [row["times_us"][0] for row in samples.get(stage, ()) if len(row["times_us"][0]) >= 4]
        errors = [abs(np.log(np.median(t[0::2]) / np.median(t[1::2]))) for t in times]
        if errors:
            result[stage] = round(float(np.median(errors)), 4)
    return result


_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms")


def profiled_samples(ranks: Ranks, workload: Workload) -> list[HostSample]:
    """Profile some steps of a workload on all ranks; the operators that the profiles show."""
    from stepsight.run.trainer import profile_host

    with TemporaryDirectory(prefix="stepsight-profile-") as folder:
        files = [Path(f) for f in ranks.call(profile_host, workload, folder, PROFILED_STEPS)]
        return host_samples(files, workload, ranks.device)


def host_samples(files: Sequence[Path], workload: Workload, device: str) -> list[HostSample]:
    """The operators of profiled steps of a workload, as the profiles of its ranks show them."""
    samples: list[HostSample] = []
    for file in trace_files(files):
        trace = read_kineto(file)
        if device == "cpu":
            samples += _operators(link(_with_optimizer(trace)), library_calls(workload))
        else:
            samples += trace_samples(trace)
    return [s for s in samples if s.times.t1 < STALL_US]


def _with_optimizer(trace: KinetoTrace) -> KinetoTrace:
    """The trace with the optimizer's ranges as operators around what they call."""
    ranges = [a for a in trace.annotations if a.name.startswith("Optimizer.")]
    ops = [*trace.host_ops, *ranges]
    in_time_order(ops)
    return replace(trace, host_ops=ops)


def library_calls(workload: Workload) -> frozenset[str]:
    """The names of all calls below autograd that a workload's steps make."""
    programs = workload.job("cpu").programs
    return frozenset(call.name for p in programs for op in p.ops for call in op.calls)


def gathered_overheads(samples: Sequence[HostSample]) -> Overheads:
    """The table of a calibrated host, the profiler's cost taken out."""
    gathered = Gathered()
    gathered.add(samples)
    return gathered.overheads("calibrated", "profiled steps of stepsight calibrate")


def _operators(linked: LinkedTrace, calls: frozenset[str]) -> Iterator[HostSample]:
    """Outermost operators in time order, but those that communicate: waiting is no overhead."""
    last: dict[int | str, tuple[str, float]] = {}
    for number in linked.children(NO_OP):
        op = linked.ops[number]
        before, end = last.get(op.tid, ("", op.ts))
        last[op.tid] = (op.name, op.end)
        around = list(_outside(linked, number, calls))
        if op_class(op.name) == "collective" or any(_communicates(linked.ops[i]) for i in around):
            continue
        made = [linked.ops[i] for i in around if linked.ops[i].name in calls]
        recorded = sum(linked.ops[i].name not in calls for i in around)
        yield HostSample(plain_name(op.name), before, len(made), _times(op, made, op.ts - end), recorded)


def _communicates(op: Event) -> bool:
    return op.name.startswith(_COMMUNICATION)


def _outside(linked: LinkedTrace, number: int, calls: frozenset[str]) -> Iterator[int]:
    """The operator, what it holds and the library calls among them, but nothing inside those."""
    yield number
    if linked.ops[number].name not in calls:
        for child in linked.children(number):
            yield from _outside(linked, child, calls)


def _times(op: Event, made: Sequence[Event], gap_us: float) -> HostTimes:
    if not made:
        return HostTimes(gap_us, 0.0, 0.0, 0.0, op.end - op.ts)
    between = [max(b.ts - a.end, 0.0) for a, b in pairwise(made)]
    mean = sum(between) / len(between) if between else 0.0
    return HostTimes(gap_us, made[0].ts - op.ts, max(op.end - made[-1].end, 0.0), 0.0, mean)
