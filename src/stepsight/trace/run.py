"""A run: the traces of all its ranks that there are, read, linked and cut into steps. Runs are never mixed.

The members of a communicator leave a collective together. Hosts' clocks may be milliseconds apart: then every
collective of one rank seems to end that much before it does on another, which tells their offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.inputs import check_limit
from stepsight.trace.calls import Calls
from stepsight.trace.execution import (
    ExecutionTrace,
    add_shapes,
    belongs,
    has_shapes,
    looks_like_chakra,
    looks_like_et,
    read_execution_trace,
    repeat_shapes,
)
from stepsight.trace.files import TraceFile, collector_off, file_name, trace_files
from stepsight.trace.kernel_names import add_types
from stepsight.trace.kineto import KinetoTrace, looks_like_kineto, read_kineto
from stepsight.trace.link import LinkedTrace, is_collective_kernel, link
from stepsight.trace.program import StepProgram
from stepsight.trace.steps import HostUnit, Step, allocation_us, find_steps, gpu_periods, host_units
from stepsight.trace.waits import WaitResolver

C = area("traces")


@dataclass(frozen=True)
class RankTrace:
    """One rank of a run, linked."""

    rank: int
    linked: LinkedTrace
    steps: tuple[Step, ...]
    built: dict[tuple[int, bool], StepProgram] = field(default_factory=dict, compare=False, repr=False)
    """Programs made so far, by step and whether their kernels have sizes (`job.rank_program`)."""
    ahead_us: float = 0.0
    """By how much its clock runs ahead of the first rank's (`clock_offsets_us`)."""

    @property
    def path(self) -> str:
        return self.linked.trace.path

    @property
    def base_us(self) -> float:
        """What its events' times count from, on the first rank's clock."""
        return self.linked.trace.base_us - self.ahead_us

    @cached_property
    def calls(self) -> Calls:
        return Calls(self.linked)

    @cached_property
    def units(self) -> list[HostUnit]:
        return host_units(self.linked)

    @cached_property
    def resolver(self) -> WaitResolver:
        return WaitResolver(self.linked)

    @cached_property
    def periods_us(self) -> FloatArray:
        """Gaps between successive steps on this rank's GPU timeline."""
        return gpu_periods(self.linked, len(self.steps))

    def is_storm(self, step: Step) -> bool:
        """Whether calls that allocate device memory make this step untypical."""
        start, end = np.array(step.start_us), np.array(step.end_us)
        return bool(allocation_us(self.linked, start, end) > C.ALLOCATION_STORM * (end - start))


@dataclass(frozen=True)
class TraceRun:
    """The ranks of one run that have traces; ``world_size`` counts all of them.

    ``missing`` are ranks without a trace: in a prediction, stand-ins run rank programs of
    ranks that have one.
    """

    ranks: tuple[RankTrace, ...]
    world_size: int
    device: str
    warnings: tuple[str, ...] = field(default=())
    gpus_on_host: int = 0
    memory_gb: float | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        have = {r.rank for r in self.ranks}
        return tuple(i for i in range(self.world_size) if i not in have)

    @property
    def steps(self) -> int:
        """Steps that every rank shows."""
        return min(len(r.steps) for r in self.ranks)


def load_trace(paths: Path | str | Sequence[Path | str]) -> TraceRun:
    """Read the profiler traces of one run, one or more ranks; folders are searched recursively."""
    with collector_off():
        return _loaded(paths)


def _loaded(paths: Path | str | Sequence[Path | str]) -> TraceRun:
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    traces: list[KinetoTrace] = []
    warnings: list[str] = []
    shaped: list[ExecutionTrace] = []
    chakra: list[str] = []
    for file in trace_files([Path(p) for p in listed]):
        if looks_like_chakra(file):
            chakra.append(file.name)
            continue
        if not looks_like_kineto(file.content):
            shaped += _execution_trace(file, warnings)
            continue
        trace = read_kineto(file)
        warnings += trace.warnings
        traces.append(trace)
    where = ", ".join(str(p) for p in listed)
    if not traces and chakra:
        raise InputError(
            where, f"holds Chakra traces only ({chakra[0]}), whose launches and waits are merged away",
            "give the profiler (Kineto) trace they were made from; `predict --chakra DIR` writes such files",
        )  # fmt: skip
    if not traces:
        raise InputError(
            where, "holds no profiler (Kineto) trace",
            "an execution trace alone has no times; add the profiler trace of the same run",
        )  # fmt: skip
    if chakra:
        warnings.append(f"{len(chakra)} Chakra files ({chakra[0]} …) are not read")
    traces, copies = without_copies(traces)
    return run_of(one_run(traces, where), [*warnings, *copies], shaped)


def _execution_trace(file: TraceFile, warnings: list[str]) -> list[ExecutionTrace]:
    """The file as an execution trace; one that cannot be read costs a warning, not the run."""
    if not looks_like_et(file.content):
        return []
    try:
        return [read_execution_trace(file)]
    except InputError as error:
        warnings.append(str(error).replace(file.path, file.name))
        return []


def run_of(
    traces: list[KinetoTrace], warnings: Sequence[str] = (), shaped: Sequence[ExecutionTrace] = ()
) -> TraceRun:
    """Link the traces of one run, one a rank, and find their steps.

    ``shaped`` are execution traces of the same run: they give sizes to profiles without any.
    """
    warnings = list(warnings)
    ranks: list[RankTrace] = []
    for number, trace in enumerate(traces):
        linked = link(trace)
        mine = [] if has_shapes(linked) else [et for et in shaped if belongs(linked, et)]
        for et in mine:
            add_shapes(linked, et)
        dtype = add_types(linked)
        if dtype is not None:
            name = file_name(trace.path)
            warnings.append(
                f"{name}: no types of inputs were recorded; taken as {dtype}, as its products are"
            )
        rank = trace.rank if trace.rank is not None else number
        steps = tuple(find_steps(linked))
        if mine and len(steps) > 1:
            repeat_shapes(linked, [(s.start_us, s.end_us) for s in steps])
        if not steps:
            raise InputError(
                trace.path, "holds kernels alone, without the calls that launched them",
                "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )  # fmt: skip
        ranks.append(RankTrace(rank, linked, steps))
    ahead_us = clock_offsets_us([(r.base_us, r.linked) for r in ranks])
    if any(ahead_us):
        ranks = [replace(r, ahead_us=us) for r, us in zip(ranks, ahead_us, strict=True)]
        most_ms = (max(ahead_us) - min(ahead_us)) / 1e3
        warnings.append(f"the ranks' clocks are {most_ms:.1f} ms apart: set by the ends of their collectives")
    world = max([t.world_size for t in traces] + [max(r.rank for r in ranks) + 1])
    if world == 1:  # a trace that does not say how many ranks there are may say it of a collective
        stated = (e.args.group_size for events in (traces[0].gpu, ranks[0].linked.ops) for e in events)
        world = max(1, max(stated, default=1))
    check_limit(world, "RANKS", traces[0].path, "its number of ranks")
    device = next((t.device for t in traces if t.device), "")
    if len(ranks) < world:
        warnings.append(f"{len(ranks)} of {world} ranks have a trace; stand-ins take the place of the others")
    memory = next((t.memory_gb for t in traces if t.memory_gb), None)
    return TraceRun(tuple(ranks), world, device, tuple(warnings), len(traces[0].devices), memory)


def measured_step_us(run: TraceRun) -> float:
    """The run's true step time.

    Several steps: the median period of the GPU timelines, over ranks, without what
    allocation storms stretch. One step: from when the last rank began to when the last ended; where GPUs were
    still at work for the step before and took longer than the hosts, from when that work was done.
    """
    step_us = _measured_step_us(run)
    if step_us <= 0:
        raise InputError(
            run.ranks[0].path, "its steps take no time", "export the trace again: its times were lost"
        )
    return step_us


def _measured_step_us(run: TraceRun) -> float:
    periods = [p for r in run.ranks for p in r.periods_us.tolist() if not np.isnan(p)]
    if periods:
        return float(np.median(periods))
    starts, ends = zip(*(step_bounds(r, 0) for r in run.ranks), strict=True)
    earlier = max(earlier_work_until(r) for r in run.ranks)
    on_host_us = max(r.steps[0].end_us - r.steps[0].start_us for r in run.ranks)
    whole_us, on_gpu_us = max(ends) - max(starts), max(ends) - earlier
    return float(on_gpu_us if on_host_us < on_gpu_us < whole_us else whole_us)


def earlier_work_until(rank: RankTrace) -> float:
    """When the GPU was done with what had been launched before the recording, wall clock in µs."""
    return rank.base_us + max((e.end for e in rank.linked.earlier_work), default=float("-inf"))


def step_bounds(rank: RankTrace, step: int) -> tuple[float, float]:
    """Start of a step on the host and the end of its last kernel or host range, wall clock in µs."""
    span = rank.steps[step]
    ends = [e.end for x in rank.linked.launches if span.start_us <= x.call.ts < span.end_us for e in x.gpu]
    return rank.base_us + span.start_us, rank.base_us + max([span.end_us, *ends])


_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Header:
    """Enough of a trace to know which run it belongs to."""

    path: str
    rank: int | None
    world_size: int
    device: str
    start_us: float

    @classmethod
    def of(cls, trace: KinetoTrace) -> Header:
        firsts = [events[0].ts for events in (trace.runtime, trace.host_ops, trace.gpu) if events]
        return cls(
            trace.path, trace.rank, trace.world_size, trace.device, trace.base_us + min(firsts, default=0.0)
        )


def runs_of(headers: Iterable[Header]) -> list[list[Header]]:
    """The traces by run, in order of their start; within a run one trace a rank."""
    groups: list[list[Header]] = []
    for header in sorted(headers, key=lambda h: (h.start_us, h.path)):
        fitting = [g for g in groups if _fits(g, header)]
        if fitting:
            min(fitting, key=lambda g: abs(g[0].start_us - header.start_us)).append(header)
        else:
            groups.append([header])
    return groups


def _fits(group: Sequence[Header], header: Header) -> bool:
    first = group[0]
    if abs(first.start_us - header.start_us) > C.RANKS_START_TOGETHER_US or first.device != header.device:
        return False
    if header.rank is None or first.rank is None:
        # Traces from before distributedInfo: ranks of one run only if nothing speaks against it.
        return header.rank is None and first.rank is None
    return first.world_size == header.world_size > 1 and all(h.rank != header.rank for h in group)


def without_copies(traces: Sequence[KinetoTrace]) -> tuple[list[KinetoTrace], list[str]]:
    """The traces, each once: one that lies there twice (packed and plain, say) is no second rank.

    Also returns what to say of those left out.
    """
    kept: dict[tuple[object, ...], KinetoTrace] = {}
    notes: list[str] = []
    for trace in traces:
        same = kept.setdefault(_content(trace), trace)
        if same is not trace:
            notes.append(f"{file_name(trace.path)} is a copy of {file_name(same.path)}: it counts once")
    return list(kept.values()), notes


def _content(trace: KinetoTrace) -> tuple[object, ...]:
    """What two recordings never share: who recorded, and when each kind of event first and last began."""
    kinds = (trace.host_ops, trace.annotations, trace.runtime, trace.gpu)
    spans = [(len(events), events[0].ts, events[-1].ts) if events else (0, 0.0, 0.0) for events in kinds]
    return trace.rank, trace.world_size, trace.device, trace.base_us, *spans


def one_run(traces: Sequence[KinetoTrace], where: str) -> list[KinetoTrace]:
    """The traces of a single run, by rank; refused with a list where there are several."""
    runs = runs_of(Header.of(t) for t in traces)
    if len(runs) > 1:
        named = "; ".join(f"{_ranks(run)} from {_below(run[0].path, where)}" for run in runs[:_SHOWN])
        more = f"; and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        raise InputError(
            where, f"holds {len(runs)} runs, which are not mixed ({named}{more})",
            "name the folder or the files of one of them",
        )  # fmt: skip
    order = {h.path: (h.rank if h.rank is not None else i, h.path) for i, h in enumerate(runs[0])}
    return sorted(traces, key=lambda t: order[t.path])


def _ranks(run: Sequence[Header]) -> str:
    return f"{len(run)} of {max(run[0].world_size, len(run))} ranks"


def _below(path: str, folder: str) -> str:
    """A trace's path inside the folder that was named, or its name alone."""
    inside = path.removeprefix(f"{folder.rstrip('/')}/")
    return file_name(path) if inside == path or "::" in path else inside


Streams = Mapping[tuple[str, ...], Sequence[FloatArray]]
"""Ends of the collectives of each stream, by the names of their kernels in order."""
_FEWEST = 3
"""Collectives that must agree: fewer may by chance."""


def clock_offsets_us(ranks: Sequence[tuple[float, LinkedTrace]]) -> list[float]:
    """By how much each rank's clock runs ahead of the first one's; ``ranks`` gives clock base and trace.

    Zero where nothing tells, and for all where no two differ by more than ranks may by chance.
    """
    if len(ranks) < 2:
        return [0.0] * len(ranks)
    streams = [_streams(base_us, linked) for base_us, linked in ranks]
    edges = sorted(
        (scatter, i, j, apart)
        for i, a in enumerate(streams)
        for j, b in enumerate(streams[:i])
        if (found := _apart(a, b)) is not None
        for scatter, apart in [found]
    )
    offsets = _along(edges, len(ranks))
    return offsets if max(map(abs, offsets), default=0.0) > C.CLOCKS_APART_US else [0.0] * len(ranks)


def _streams(base_us: float, linked: LinkedTrace) -> Streams:
    by_stream: dict[int | str, list[tuple[str, float]]] = defaultdict(list)
    for launch in linked.launches:
        event = launch.gpu[0]
        # Who only sends is done before its peer.
        if is_collective_kernel(event) and "sendrecv" not in event.name.lower():
            by_stream[event.args.stream].append((event.name, base_us + event.end))
    found: dict[tuple[str, ...], list[FloatArray]] = defaultdict(list)
    for seen in by_stream.values():
        if len(seen) >= _FEWEST:
            found[tuple(name for name, _ in seen)].append(np.array([end for _, end in seen]))
    return found


def _apart(a: Streams, b: Streams) -> tuple[float, float] | None:
    """How far two ranks' clocks are apart by the streams that agree best, and how well those agree."""
    best: tuple[float, float] | None = None
    for names in a.keys() & b.keys():
        for first in a[names]:
            for second in b[names]:
                gaps = first - second
                apart = float(np.median(gaps))
                scatter = float(np.median(np.abs(gaps - apart)))
                if scatter <= C.MEMBERS_END_TOGETHER_US and (best is None or scatter < best[0]):
                    best = scatter, apart
    return best


def _along(edges: Sequence[tuple[float, int, int, float]], ranks: int) -> list[float]:
    """Offsets from the first rank, along the pairs that agree best."""
    near: dict[int, list[tuple[int, float]]] = defaultdict(list)
    tree = list(range(ranks))
    for _, i, j, apart in edges:
        if tree[i] != tree[j]:
            tree = [tree[j] if t == tree[i] else t for t in tree]
            near[j].append((i, apart))
            near[i].append((j, -apart))
    offsets = [0.0] * ranks
    seen, reached = {0}, [0]
    while reached:
        at = reached.pop()
        for other, apart in near[at]:
            if other not in seen:
                seen.add(other)
                offsets[other] = offsets[at] + apart
                reached.append(other)
    return offsets
