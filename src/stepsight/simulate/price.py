"""Estimated programs: every launch and every host gap of a job gets its time.

Models answer for all kernels of a job at once; ranks that run the same program are
priced once. Each time keeps its source and spread, so that the prediction can say what
it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import Estimate, Estimates, FloatArray, IntArray, Source
from stepsight.kernels.families import category
from stepsight.overheads.frameworks import framework_times
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Group, HostTimes, Job, Kernel, Op
from stepsight.simulate.condensed import with_condensed
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import Lane, LoweredProgram, lanes, launches_of
from stepsight.simulate.shared_memory import side_by_side, slowdown_of

COMMUNICATION = "communication"
"""The category of every collective."""
REPLAYABLE = ("kernels", "collectives", "host")
"""What can be taken from a trace instead of from the models."""


@dataclass(frozen=True, slots=True)
class PricedLane:
    """A lane with its times: ``device`` estimates are ``(launches, programs of the lane)``."""

    lane: Lane
    programs: IntArray
    times: Priced
    source: IntArray
    spread: FloatArray
    category: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PricedJob:
    """A job whose every launch has a time, and what must be said about those times."""

    job: Job
    lanes: tuple[PricedLane, ...]
    notes: Mapping[str, str]


def price(job: Job, platform: Platform, replay: Iterable[str] = ()) -> PricedJob:
    """Estimate every kernel, collective and host gap; ``replay`` names what the trace gives."""
    replayed = frozenset(replay)
    book = _Book(job, platform, replayed)
    synchronous = platform.spec.host.synchronous
    priced = tuple(book.lane(lane) for lane in lanes(job, synchronous=synchronous))
    return PricedJob(job, priced, book.notes)


class _Book:
    """Looks times up once per distinct kernel, collective and operator."""

    def __init__(self, job: Job, platform: Platform, replayed: frozenset[str]) -> None:
        self.job, self.platform, self.replayed = job, platform, replayed
        self.notes: dict[str, str] = {}
        self.host_times: dict[tuple[str | int, ...], HostTimes] = {}
        self.collectives: dict[tuple[str, float, tuple[int, ...]], Estimate] = {}
        kernels = {id(k): k for p in job.programs for op in p.ops for k in op.kernels}
        self.number = {key: i for i, key in enumerate(kernels)}
        self.families = [kernel.family for kernel in kernels.values()]
        self.kernels = self._estimate(list(kernels.values()))

    def lane(self, lane: Lane) -> PricedLane:
        tape = lane.tape
        programs, column = np.unique(lane.program_of_rank, return_inverse=True)
        shape = (tape.launches, len(lane.ranks))
        numbers = np.full((tape.launches, len(programs)), -1, dtype=np.int64)
        names = [""] * tape.launches
        meetings: list[tuple[int, int, Collective]] = []
        for p, index in enumerate(programs):
            items = (i for op in self.job.programs[index].ops for i in launches_of(op))
            for k, item in enumerate(items):
                if isinstance(item, Collective):
                    meetings.append((k, p, item))
                    names[k] = COMMUNICATION
                else:
                    numbers[k, p] = self.number[id(item)]
                    names[k] = category(item.family)
        each = [a[numbers] for a in (self.kernels.time_us, self.kernels.source, self.kernels.spread)]
        time, source, spread = (np.broadcast_to(a[:, column], shape).copy() for a in each)
        self._share_memory(time, numbers[:, 0], lane.ranks)
        for k, p, item in meetings:
            members = np.flatnonzero(column == p)
            time[k, members], source[k, members], spread[k, members] = self._collective(
                item, lane.ranks[members]
            )
        times = Priced(
            self._host(lane, programs, column), _squeezed(time)[:, None, :], _late(shape, meetings, column)
        )
        return PricedLane(lane, programs, times, source, spread, tuple(names))

    def _share_memory(self, time: FloatArray, numbers: IntArray, ranks: IntArray) -> None:
        """Lookups of ranks that share a memory, in place; only where all ranks of the nodes run this lane."""
        spec = self.platform.spec
        if "kernels" in self.replayed or len(ranks) != self.job.ranks:
            return
        for launch in np.flatnonzero(numbers >= 0):
            slowdown = slowdown_of(spec.contention, self.families[numbers[launch]])
            if slowdown > 1.0:
                time[launch] = side_by_side(time[launch], slowdown, spec.gpus_per_node)

    def _estimate(self, kernels: list[Kernel]) -> Estimates:
        estimates = with_condensed(kernels, self.platform)
        for position, note in estimates.notes.items():
            self.notes.setdefault(kernels[position].name or kernels[position].family, note)
        unsure = np.array([k.size_spread for k in kernels])
        estimates = replace(estimates, spread=np.hypot(estimates.spread, unsure))
        if "kernels" not in self.replayed:
            return estimates
        seen = np.array([np.nan if k.measured_us is None else k.measured_us for k in kernels])
        known = ~np.isnan(seen)
        return Estimates(
            np.where(known, seen, estimates.time_us),
            np.where(known, int(Source.TRACE), estimates.source),
            np.where(known, 0.0, estimates.spread),
        )

    def _collective(self, item: Collective, ranks: IntArray) -> tuple[FloatArray, int, float]:
        """The times of these ranks (all of which call it alike), its source and its spread."""
        if "collectives" in self.replayed and item.measured_us is not None:
            return np.full(len(ranks), item.measured_us), int(Source.TRACE), 0.0
        times = np.zeros(len(ranks))
        worst = Estimate(0.0, Source.TRACE, 0.0)
        wanted = set(ranks.tolist())
        for group in self.job.groups.get(item.group, ()):
            if not wanted.intersection(group.ranks):
                continue
            by_rank, estimate = self._set_times(item, group)
            here = np.isin(ranks, group.ranks)
            times[here] = [by_rank[group.ranks.index(r)] for r in ranks[here].tolist()]
            worst = max(worst, estimate, key=lambda e: (e.source, e.spread))
            if estimate.note:
                self.notes.setdefault(item.kind, estimate.note)
        return times, int(worst.source), float(np.hypot(worst.spread, item.size_spread))

    def _set_times(self, item: Collective, group: Group) -> tuple[list[float], Estimate]:
        models = self.platform.collectives
        if item.send_bytes is not None:
            finish, estimate = models.estimate_alltoallv(item.send_bytes, group.ranks)
            return finish.tolist(), estimate
        kind, size = ("all_reduce", 4.0) if item.kind == "barrier" else (item.kind, item.bytes)
        kind = "all_to_all" if kind == "all_to_allv" else kind
        # Sets that lie on the nodes in the same way take the same time.
        ranks = item.spans or group.ranks
        nodes = np.array(ranks) // self.platform.spec.gpus_per_node
        layout = tuple(np.unique(nodes, return_counts=True)[1].tolist())
        key = (kind, size, layout)
        if key not in self.collectives:
            self.collectives[key] = models.estimate(kind, np.array([size]), ranks)[0]
        estimate = self.collectives[key]
        return [estimate.time_us * item.count] * len(group.ranks), estimate

    def _host(self, lane: Lane, programs: IntArray, column: IntArray) -> FloatArray:
        columns = [self._host_of(lane.tape, self.job.programs[p].ops) for p in programs]
        table = np.stack(columns, axis=1)
        return _squeezed(table[:, column] if len(programs) > 1 else table)[:, None, :]

    def _host_of(self, tape: LoweredProgram, ops: tuple[Op, ...]) -> FloatArray:
        """Host time before every mark: T1 | T2+T4 | T5+T4 … | T3, or T1 | T5 without launches."""
        spent = np.zeros(tape.marks)
        for i, op in enumerate(ops):
            launches = len(op.kernels) + (op.collective is not None)
            times = op.overhead_us or self._overheads(op, launches)
            first, last = tape.op_start_mark[i], tape.op_end_mark[i]
            spent[first] = times.t1
            if launches == 0:
                spent[last] = times.t5
                continue
            spent[first + 1] = times.t2 + times.t4
            spent[first + 2 : last] = times.t5 + times.t4
            spent[last] = times.t3
        return spent

    def _overheads(self, op: Op, launches: int) -> HostTimes:
        key = (op.framework, op.phase, op.launches, launches) if op.framework else (op.name, launches)
        if key not in self.host_times:
            overheads = self.platform.overheads
            if op.framework:
                found = framework_times(overheads, op.framework, op.phase, op.launches, launches)
            else:
                found = overheads.of(op.name, launches=launches)
            self.host_times[key] = found
        return self.host_times[key]


def _late(
    shape: tuple[int, int], meetings: Iterable[tuple[int, int, Collective]], column: IntArray
) -> FloatArray | None:
    """How late others come to each launch, (launches, 1, ranks); None where nobody does."""
    late = np.zeros(shape)
    for launch, program, item in meetings:
        late[launch, column == program] = item.late_us
    return _squeezed(late)[:, None, :] if late.any() else None


def _squeezed(table: FloatArray) -> FloatArray:
    """One column where all columns agree: ranks that cost the same are priced as one."""
    if table.shape[1] > 1 and (table == table[:, :1]).all():
        return np.ascontiguousarray(table[:, :1])
    return table
