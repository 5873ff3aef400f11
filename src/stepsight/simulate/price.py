"""Estimated programs: every launch and every host gap of a job gets its time.

Models answer for all kernels of a job at once; ranks that run the same program are
priced once. Each time keeps its source and spread, so that the prediction can say what
it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.collectives.roofline import worst_placed
from stepsight.estimate import Estimate, Estimates, FloatArray, IntArray, Source
from stepsight.kernels.families import category
from stepsight.overheads.frameworks import framework_times, profile_of
from stepsight.overheads.tables import host_work_us
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Copies, Group, HostTimes, Job, Kernel, Op, RankProgram
from stepsight.program.observation import UNOBSERVED, Observation, Observations, ObservedJob, of_launches
from stepsight.simulate.contention import side_by_side, slowdown_of
from stepsight.simulate.engine import Priced
from stepsight.simulate.fold import Fold, fold, layout, unfolded
from stepsight.simulate.lowering import Lane, LoweredProgram, lanes, launches_of
from stepsight.simulate.sustained import sustained

COMMUNICATION = "communication"
"""The category of every collective."""
Meeting = tuple[int, int, Collective, Observation]
"""A collective's launch and program of a lane, the collective and what was seen of it."""
INSIDE_LAYERS = ("tensor", "context", "expert")
"""Groups whose collectives compute waits for in every layer."""
REPLAYABLE = ("kernels", "collectives", "host")
"""What can be taken from a trace instead of from the models."""


@dataclass(frozen=True, slots=True)
class PricedLane:
    """A lane with its times: ``device`` estimates are ``(launches, ranks of the lane)``.

    ``weight`` is for how many ranks of the job each of the lane's ranks stands.
    """

    lane: Lane
    programs: IntArray
    times: Priced
    source: IntArray
    spread: FloatArray
    category: tuple[str, ...]
    weight: IntArray


@dataclass(frozen=True, slots=True)
class PricedJob:
    """A job whose every launch has a time, and what must be stated about those times.

    The lanes' ranks are the classes of `Fold`: identical ranks are priced and walked once. ``clock`` is the
    share of the boost clock that the GPUs keep, ``dynamic_j`` the energy of all ranks' kernels beyond idle
    power (None where the platform's power is not known).
    """

    job: Job
    lanes: tuple[PricedLane, ...]
    notes: Mapping[str, str]
    fold: Fold
    seen: Observations = ()
    clock: float = 1.0
    dynamic_j: float | None = None


def price(
    job: Job, platform: Platform, replay: Iterable[str] = (), *, fold_identical: bool = True,
    seen: Observations = (), times: Sequence[float] = (),
) -> PricedJob:  # fmt: skip
    """Estimate every kernel, collective and host gap; ``replay`` names what is taken from the trace, whose
    observations are ``seen``.

    Ranks that are identical are priced once, unless the caller is going to change some of them. ``times``:
    how often each program runs in a step, where that is not once per rank.
    """
    pricer = JobPricer(job, platform, frozenset(replay), fold_identical, seen, times)
    synchronous = platform.spec.host.synchronous
    priced = tuple(pricer.lane(lane) for lane in lanes(pricer.fold.job, synchronous=synchronous))
    return PricedJob(job, priced, pricer.notes, pricer.fold, seen, pricer.clock, pricer.dynamic_j)


def estimate_collective(job: Job, platform: Platform, item: Collective) -> Estimate | None:
    """What the platform's models say of one collective; the first set of its group stands for all.

    None where the platform has no such group.
    """
    sets = job.groups.get(item.group, ())
    if not sets or len(sets[0].ranks) > platform.spec.ranks:
        return None
    return platform.conditions.collective(item.group, *_modelled_as(item), sets[0].ranks)


def _modelled_as(item: Collective) -> tuple[str, float]:
    """The kind and bytes by which models know a collective."""
    if item.kind == "barrier":
        return "all_reduce", 4.0
    return "all_to_all" if item.kind == "all_to_allv" else item.kind, item.bytes


class JobPricer:
    """Looks times up once per distinct kernel, collective and operator."""

    def __init__(
        self, job: Job, platform: Platform, replayed: frozenset[str], fold_identical: bool,
        seen: Observations, times: Sequence[float],
    ) -> None:  # fmt: skip
        self.times = times
        self.job, self.platform, self.replayed = job, platform, replayed
        self.seen = seen
        self.notes: dict[str, str] = {}
        self.host_times: dict[tuple[str | int, ...], HostTimes] = {}
        self.collectives: dict[tuple[str, str, float, tuple[int, ...], Copies | None], Estimate] = {}
        # Ranks on one memory slow each other by their own sizes, so each of them is walked.
        contention = platform.spec.contention
        apart = not fold_identical or max(contention.lookups_forward, contention.lookups_backward) > 1.0
        self.own: dict[tuple[int, tuple[int, ...]], tuple[FloatArray, Estimate]] = {}
        per_node = platform.spec.gpus_per_node
        self.fold = unfolded(job) if apart else fold(job, per_node, lambda c, g: self._by_rank(c, g)[0])
        self.sets = {name: _Sets(job, name, platform.spec.gpus_per_node) for name in self.fold.job.groups}
        self.number: dict[tuple[int, Observation], int] = {}
        distinct: dict[tuple[Any, Observation], int] = {}
        launches: list[tuple[Kernel, Observation]] = []
        ops = (
            ObservedJob(job, seen).ops() if seen else ((op, of_launches(op, ())) for op in job.distinct_ops())
        )
        for op, found in ops:
            for kernel, observation in zip(op.kernels, found, strict=False):
                at = id(kernel), observation
                if at in self.number:
                    continue
                key = kernel if kernel.lookup is None else id(kernel), observation
                if key not in distinct:
                    distinct[key] = len(launches)
                    launches.append((kernel, observation))
                self.number[at] = distinct[key]
        self.families = [kernel.family for kernel, _ in launches]
        self.skew_us: dict[int, float] = {}
        self.known_calls: dict[tuple[object, Observation, int], tuple[float, int, float]] = {}
        self.placed: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.shapes: dict[tuple[int, ...], tuple[int, int, int]] = {}
        self.clock = 1.0
        self.dynamic_j: float | None = None
        self.kernels = self._estimate([k for k, _ in launches], [o for _, o in launches])

    def lane(self, lane: Lane) -> PricedLane:
        programs, column = np.unique(lane.program_of_rank, return_inverse=True)
        shape = (lane.tape.launches, len(lane.ranks))
        numbers, names, meetings = self._launches(lane.tape, programs)
        each = [a[numbers] for a in (self.kernels.time_us, self.kernels.source, self.kernels.spread)]
        time, source, spread = (np.broadcast_to(a[:, column], shape).copy() for a in each)
        self._share_memory(time, numbers[:, 0], lane.ranks)
        callers: dict[tuple[int, int, Observation], tuple[Collective, list[int]]] = {}
        for k, p, item, found in meetings:
            callers.setdefault((k, id(item), found), (item, []))[1].append(p)
        for (k, _, found), (item, called_by) in callers.items():
            if len(lane.ranks) == 1:
                time[k, 0], source[k, 0], spread[k, 0] = self._of_one_rank(item, found, lane.ranks)
                continue
            members = np.flatnonzero(np.isin(column, called_by))
            time[k, members], source[k, members], spread[k, members] = self._collective(
                item, found, self.fold.first[lane.ranks[members]]
            )
        times = Priced(
            self._host(lane, programs, column), _squeezed(time)[:, None, :], _late(shape, meetings, column)
        )
        weight = self.fold.count[lane.ranks]
        return PricedLane(lane, programs, times, source, spread, tuple(names), weight)

    def _launches(
        self, tape: LoweredProgram, programs: IntArray
    ) -> tuple[IntArray, list[str], list[Meeting]]:
        """The kernel of every launch of every program by number (-1: none), their categories, and the
        collectives: of each launch and program the one that the program itself calls there."""
        numbers = np.full((tape.launches, len(programs)), -1, dtype=np.int64)
        names = [""] * tape.launches
        meetings: dict[tuple[int, int], tuple[Collective, Observation]] = {}
        first_launch = np.searchsorted(tape.launch_op, np.arange(len(tape.op_times)))
        shared = self.job.programs[programs[0]].ops
        of_first: dict[tuple[int, int], tuple[Collective, Observation]] = {}
        for p, index in enumerate(programs):
            if p:  # most operators are those of the first program
                numbers[:, p] = numbers[:, 0]
                meetings |= {(k, p): called for (k, _), called in of_first.items()}
            for i, op in enumerate(self.job.programs[index].ops):
                if p and op is shared[i] and not self.seen:
                    continue
                observed = of_launches(op, self.seen[index][i] if self.seen else ())
                launched = zip(launches_of(op), observed, strict=True)
                for k, (item, found) in enumerate(launched, int(first_launch[i])):
                    if isinstance(item, Collective):
                        meetings[k, p] = item, found
                        names[k] = COMMUNICATION
                        self.skew_us[id(item)] = _skew_us(op, item)
                    else:
                        numbers[k, p] = self.number[id(item), found]
                        names[k] = category(item.family)
            of_first = of_first or dict(meetings)
        return numbers, names, [(k, p, *called) for (k, p), called in meetings.items()]

    def _share_memory(self, time: FloatArray, numbers: IntArray, ranks: IntArray) -> None:
        """Lookups of ranks that share a memory, in place; only where all ranks of the nodes run this lane."""
        spec = self.platform.spec
        if "kernels" in self.replayed or len(ranks) != self.job.ranks:
            return
        for launch in np.flatnonzero(numbers >= 0):
            slowdown = slowdown_of(spec.contention, self.families[numbers[launch]])
            if slowdown > 1.0:
                time[launch] = side_by_side(time[launch], slowdown, spec.gpus_per_node)

    def _estimate(self, kernels: list[Kernel], seen: list[Observation]) -> Estimates:
        """Models are asked for what the trace does not give; their notes are on those alone."""
        replayed = "kernels" in self.replayed
        time_us = np.array([
            np.nan if o.measured_us is None or not (replayed or o.opaque) else o.measured_us for o in seen
        ])  # fmt: skip
        late_us = np.array([o.late_us for o in seen])
        spread = np.zeros(len(kernels))
        source = np.full(len(kernels), int(Source.TRACE), dtype=np.int64)
        asked = np.flatnonzero(np.isnan(time_us))
        if len(asked):
            unknown = [kernels[i] for i in asked.tolist()]
            known = [seen[i] for i in asked.tolist()] if self.seen else []
            estimates = self._sustained(unknown, self._counts(len(kernels))[asked], known)
            for position, note in estimates.notes.items():
                self.notes.setdefault(unknown[position].label, note)
            time_us[asked] = estimates.time_us
            spread[asked] = np.hypot(estimates.spread, [k.size_spread for k in unknown])
            source[asked] = estimates.source
        # The delay is as sure as the trace: only the rest may be off.
        part = time_us / np.maximum(time_us + late_us, 1e-9)
        spread = np.where(late_us > 0, np.log1p(np.expm1(spread) * part), spread)
        source[late_us > time_us] = int(Source.TRACE)
        return Estimates(time_us + late_us, source, spread)

    def _sustained(self, kernels: list[Kernel], counts: FloatArray, seen: list[Observation]) -> Estimates:
        """Times at the clock that the platform keeps under this job, and the energy that they take."""
        found = sustained(kernels, counts, self.platform, seen)
        self.clock, power = found.clock, self.platform.conditions.power
        if power is not None:
            self.dynamic_j = power.dynamic_j(found.draws.total(counts), found.clock)
        return found.estimates

    def _counts(self, kernels: int) -> FloatArray:
        """How often each distinct kernel runs in a step, over all ranks."""
        times = np.zeros(kernels)
        ranks: Mapping[int, float] = dict(enumerate(self.times)) or Counter(self.job.program_of_rank)
        observed = ObservedJob(self.job, self.seen)
        for number, program in enumerate(self.job.programs):
            if not self.seen:
                self._count_ops(program, ranks[number], times)
                continue
            for op, found in observed.of_program(number):
                for kernel, observation in zip(op.kernels, found, strict=False):
                    times[self.number[id(kernel), observation]] += ranks[number]
        return times

    def _count_ops(self, program: RankProgram, ranks: float, times: FloatArray) -> None:
        """Adds a program's kernels; operators that repeat, and blocks that are not listed, count as often."""
        ops = Counter(map(id, program.ops))
        if program.period:
            for op in program.ops[slice(*program.period.starts[-2:])]:
                ops[id(op)] += program.period.skipped
        for op in {id(op): op for op in program.ops}.values():
            for kernel in op.kernels:
                times[self.number[id(kernel), UNOBSERVED]] += ranks * ops[id(op)]

    def _collective(
        self, item: Collective, seen: Observation, ranks: IntArray
    ) -> tuple[FloatArray, int, float]:
        """The times of these ranks (all of which call it in the same way), its source and its spread."""
        if ("collectives" in self.replayed or seen.opaque) and seen.measured_us is not None:
            return np.full(len(ranks), seen.measured_us), int(Source.TRACE), 0.0
        times = np.zeros(len(ranks))
        worst = Estimate(0.0, Source.TRACE, 0.0)
        sets = self.sets[item.group]
        asked = sets.of_rank[ranks] if item.send_bytes is not None else sets.layout[sets.of_rank[ranks]]
        for number in np.unique(asked[sets.of_rank[ranks] >= 0]).tolist():
            here = asked == number
            if item.send_bytes is not None:
                finish, estimate = self._by_rank(item, sets.groups[number])
                times[here] = finish[sets.place[ranks[here]]]
            else:
                estimate = self._balanced(item, sets, number)
                times[here] = estimate.time_us * item.count + self.skew_us.get(id(item), 0.0)
            worst = max(worst, estimate, key=lambda e: (e.source, e.spread))
            if estimate.note:
                self.notes.setdefault(item.kind, estimate.note)
        return seen.correction * times, int(worst.source), float(np.hypot(worst.spread, item.size_spread))

    def _of_one_rank(self, item: Collective, seen: Observation, rank: IntArray) -> tuple[float, int, float]:
        """The same for one rank; its passes repeat their collectives."""
        key = (id(item), seen, int(rank[0])) if item.send_bytes is not None else (item, seen, int(rank[0]))
        if key not in self.known_calls:
            times, source, spread = self._collective(item, seen, self.fold.first[rank])
            self.known_calls[key] = float(times[0]), source, spread
        return self.known_calls[key]

    def _by_rank(self, item: Collective, group: Group) -> tuple[FloatArray, Estimate]:
        """When each rank of a set is done, where ranks move bytes of their own."""
        key = id(item.send_bytes), group.ranks
        if key not in self.own:
            sent = item.send_bytes if item.send_bytes is not None else np.zeros((0, 0))
            self.own[key] = self.platform.conditions.alltoallv(sent, group.ranks)
        return self.own[key]

    def _balanced(self, item: Collective, sets: _Sets, way: int) -> Estimate:
        """Sets that lie on the nodes in the same way take the same time."""
        kind, size = _modelled_as(item)
        if item.spans:
            if item.spans not in self.placed:
                self.placed[item.spans] = worst_placed(item.spans, self.platform.spec)
            spans = self.placed[item.spans]
            if spans not in self.shapes:
                nodes, per_node = layout(np.array([spans]), self.platform.spec.gpus_per_node)
                self.shapes[spans] = len(spans), int(nodes[0]), int(per_node[0])
            shape = self.shapes[spans]
        else:
            spans, shape = (), sets.shapes[way]
        key = (item.group if self.platform.site else "", kind, size, shape, item.copies)
        if key not in self.collectives:
            ranks = spans or sets.groups[int(np.argmax(sets.layout[:-1] == way))].ranks
            self.collectives[key] = self.platform.conditions.collective(
                item.group, kind, size, tuple(ranks), item.copies
            )
        return self.collectives[key]

    def _host(self, lane: Lane, programs: IntArray, column: IntArray) -> FloatArray:
        table = np.empty((lane.tape.marks, len(programs)))
        shared: tuple[Op, ...] = ()
        for p, index in enumerate(programs):
            ops = self.job.programs[index].ops
            table[:, p] = table[:, 0] if p else 0.0
            self._host_of(lane.tape, ops, shared, table[:, p])
            shared = shared or ops
        return _squeezed(table[:, column] if len(programs) > 1 else table)[:, None, :]

    def _host_of(
        self, tape: LoweredProgram, ops: tuple[Op, ...], known: tuple[Op, ...], spent: FloatArray
    ) -> None:
        """Host time before every mark: T1 | T2+T4 | T5+T4 … | T3, or T1 | T5 without launches.

        ``spent`` is filled in; it holds the times of ``known`` operators already.
        """
        for i, op in enumerate(ops):
            if known and op is known[i]:
                continue
            launches = len(op.kernels) + (op.collective is not None)
            times = op.overhead_us or self._overheads(op, launches)
            first, last = tape.op_start_mark[i], tape.op_end_mark[i]
            spent[first] = times.t1
            if launches == 0:
                own = host_work_us(op.host_bytes, op.host_divisions)
                spent[last] = times.t5 + own * self.platform.learned.host / self.platform.spec.host.speed
                continue
            spent[first + 1] = times.t2 + times.t4
            spent[first + 2 : last] = 0.0 if op.cuda_graph else times.t5 + times.t4
            spent[last] = times.t3

    def _overheads(self, op: Op, launches: int) -> HostTimes:
        overheads = self.platform.overheads
        # A calibrated host's own operators come before a profile.
        measured = self.platform.folder is not None and op.launches == launches and overheads.known(op.name)
        by_profile = bool(op.framework) and not measured
        key = (op.framework, op.phase, op.launches, launches) if by_profile else (op.name, launches)
        if key not in self.host_times:
            if by_profile:
                found = framework_times(overheads, op.framework, op.phase, op.launches, launches)
            else:
                found = overheads.of(op.name, launches=launches)
            self.host_times[key] = self.platform.conditions.host(found)
        return self.host_times[key]


def _skew_us(op: Op, item: Collective) -> float:
    """What a framework's collectives inside a layer lose because the hosts of their group are not in step."""
    if not op.framework or item.group not in INSIDE_LAYERS:
        return 0.0
    return profile_of(op.framework).skew_us * (len(item.spans) - 1) * item.count


class _Sets:
    """The sets of ranks of one process group.

    By rank: in which set it is (-1: in none) and at which place. By set: its ``layout``, a number for every
    way to lie on the nodes; ``shapes`` are those ways.
    """

    def __init__(self, job: Job, name: str, ranks_per_node: int) -> None:
        self.groups = [g for g in job.groups[name] if g.ranks]
        sizes = np.array([len(g.ranks) for g in self.groups])
        ranks = np.concatenate([np.array(g.ranks) for g in self.groups])
        self.of_rank = np.full(job.ranks, -1, dtype=np.int64)
        self.place = np.zeros(job.ranks, dtype=np.int64)
        self.of_rank[ranks] = np.repeat(np.arange(len(sizes)), sizes)
        self.place[ranks] = np.concatenate([np.arange(n) for n in sizes])
        ways = np.zeros((len(sizes), 3), dtype=np.int64)
        for size in np.unique(sizes).tolist():
            rows = np.array([g.ranks for g in self.groups if len(g.ranks) == size])
            ways[sizes == size] = np.stack([np.full(len(rows), size), *layout(rows, ranks_per_node)], axis=1)
        distinct, number = np.unique(ways, axis=0, return_inverse=True)
        self.shapes = [tuple(row) for row in distinct.tolist()]
        self.layout = np.append(number.reshape(-1), -1)


def _late(shape: tuple[int, int], meetings: Sequence[Meeting], column: IntArray) -> FloatArray | None:
    """How late others come to each launch, (launches, 1, ranks); None where nobody does."""
    if not any(seen.late_us for *_, seen in meetings):
        return None
    late = np.zeros(shape)
    for launch, program, _, seen in meetings:
        late[launch, column == program] = seen.late_us
    return _squeezed(late)[:, None, :] if late.any() else None


def _squeezed(table: FloatArray) -> FloatArray:
    """One column where all columns agree: ranks that cost the same are priced as one."""
    if table.shape[1] > 1 and (table == table[:, :1]).all():
        return np.ascontiguousarray(table[:, :1])
    return table
