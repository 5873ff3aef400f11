"""Host overheads from profiled steps: T1–T5 of every operator, on a CPU as on a GPU.

Where the host executes the kernels itself, the library calls inside an operator stand where
a GPU's launches stand: T2 is what comes before the first of them, T3 what comes after the
last, T5 what lies between two. Their own time is the kernels', which has been measured apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from stepsight.calibrate.constants import PROFILED_STEPS, STALL_US
from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.operators import op_class, plain_name
from stepsight.overheads.tables import Overheads
from stepsight.program.job import HostTimes
from stepsight.run.ranks import Ranks
from stepsight.trace.linking.launches import NO_OP
from stepsight.trace.linking.link import LinkedTrace, link
from stepsight.trace.reading.events import Event
from stepsight.trace.reading.files import trace_files
from stepsight.trace.reading.kineto import KinetoTrace, in_time_order, read_kineto
from stepsight.trace.step.host_times import trace_samples
from stepsight.workload.files import Workload

_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms")


def profiled_samples(ranks: Ranks, workload: Workload) -> list[HostSample]:
    """Profile some steps of a workload on all ranks; the operators that the profiles show."""
    from stepsight.run.profiling import profile_host

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
