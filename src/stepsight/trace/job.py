"""A step of a trace as a `Job`: programs of all ranks, their groups and start skew, missing ranks.

A collective of a rank whose peers were not recorded holds its own time and the wait for the last of them.
Calls of one kind and size move the same data: what one of them takes far longer than the shortest is waiting.
Peers may also be late every time: then the shortest itself waited, and what it took beyond the longest that
the platform's links may need was waiting. How long it moves data remains the model's to say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from stepsight.constants import area
from stepsight.program.job import Collective, Group, Job, Op, RankProgram
from stepsight.program.observation import (
    Observation,
    ObservedJob,
    OpObservations,
    of_collective,
    with_collective,
)
from stepsight.trace.events import Event
from stepsight.trace.program import StepProgram, TracedOp, step_program
from stepsight.trace.run import RankTrace, TraceRun

C = area("traces")


def rank_program(run: TraceRun, rank: RankTrace, step: int, *, sized: bool = True) -> StepProgram:
    """One rank's step, with the host times that the trace shows. Where kernels need not be ``sized``, a
    program in which they are serves as well."""
    key = step, sized or (step, True) in rank.built
    if key not in rank.built:
        rank.built[key] = step_program(
            rank.calls, rank.units, rank.steps[step], rank.resolver, run.world_size, sized=sized
        )
    return rank.built[key]


def clean_steps(run: TraceRun) -> list[int]:
    """Steps without an allocation storm on any rank; all of them where none is clean."""
    everyone = range(run.steps)
    clean = [s for s in everyone if not any(r.is_storm(r.steps[s]) for r in run.ranks)]
    return clean or list(everyone)


def typical_step(run: TraceRun) -> int:
    """The clean step nearest to the median one: on the GPUs' timelines, or with one step only by its host
    range. Steps may alternate, and a host that runs ahead shows the wrong ones long."""
    clean = clean_steps(run)
    lengths = np.array([_period_us(run, s) for s in clean])
    if not np.isfinite(lengths).any():
        lengths = np.array([max(r.steps[s].end_us - r.steps[s].start_us for r in run.ranks) for s in clean])
    return clean[int(np.nanargmin(np.abs(lengths - np.nanmedian(lengths))))]


def _period_us(run: TraceRun, step: int) -> float:
    """From this step to the next on the GPUs' timelines, the median over ranks; NaN where none shows it."""
    seen = [r.periods_us[step] for r in run.ranks if step < len(r.periods_us)]
    return float(np.median(seen)) if seen and np.isfinite(seen).all() else float("nan")


def job_of(run: TraceRun, programs: dict[int, StepProgram]) -> ObservedJob:
    """Join rank programs: collectives lose their waiting, groups and start skew are added."""
    order = sorted(programs)
    ops = {r: [(t.op, t.seen) for t in programs[r].ops] for r in order}
    groups = groups_of(run, programs)
    if len(order) > 1:
        apart = unmatched(programs, groups)
        for name, ranks in apart.items():
            for r in ranks:
                ops[r] = [
                    by_itself(o, seen) if o.collective and o.collective.group == name else (o, seen)
                    for o, seen in ops[r]
                ]
            groups[_alone(name)] = tuple(Group(_alone(name), (r,)) for r in range(run.world_size))
        _without_waiting(run, programs, ops, _meetings(programs, groups, apart))
    stand_in = _stand_ins(run, order)
    index = {r: i for i, r in enumerate(order)}
    job = Job(
        tuple(RankProgram(tuple(op for op, _ in ops[r]), f"rank {r}") for r in order),
        tuple(index[stand_in[r]] for r in range(run.world_size)),
        groups,
        _starts(run, programs, stand_in),
    )
    return ObservedJob(job, tuple(tuple(seen for _, seen in ops[r]) for r in order))


def _stand_ins(run: TraceRun, order: list[int]) -> dict[int, int]:
    return {r: r if r in order else order[r % len(order)] for r in range(run.world_size)}


def _starts(run: TraceRun, programs: dict[int, StepProgram], stand_in: dict[int, int]) -> tuple[float, ...]:
    base = {r.rank: r.base_us + programs[r.rank].start_us for r in run.ranks}
    first = min(base.values())
    return tuple(base[stand_in[r]] - first for r in range(run.world_size))


def _collectives(program: StepProgram) -> list[tuple[int, TracedOp]]:
    return [(i, t) for i, t in enumerate(program.ops) if t.op.collective is not None]


Meetings = dict[tuple[str, tuple[int, ...], int], dict[int, int]]
"""(group, the ranks of one of its sets, which of their calls) → the op's index by rank."""


def _meetings(
    programs: dict[int, StepProgram], groups: dict[str, tuple[Group, ...]], apart: dict[str, tuple[int, ...]]
) -> Meetings:
    """Which ops of the ranks are one collective: the n-th of the same set of the same group.

    ``apart`` are ranks, by group, whose calls do not match.
    """
    found: Meetings = defaultdict(dict)
    members = {(name, r): g.ranks for name, sets in groups.items() for g in sets for r in g.ranks}
    for rank, program in programs.items():
        count: dict[str, int] = defaultdict(int)
        for i, traced in _collectives(program):
            group = traced.op.collective.group if traced.op.collective else ""
            if rank not in apart.get(group, ()):
                found[group, members.get((group, rank), ()), count[group]][rank] = i
                count[group] += 1
    return found


def _kernel(program: StepProgram, op: int) -> Event:
    """The kernel of a collective."""
    return program.ops[op].launches[-1].gpu[0]


def _without_waiting(
    run: TraceRun, programs: dict[int, StepProgram], ops: dict[int, list[tuple[Op, OpObservations]]],
    meetings: Meetings,
) -> None:  # fmt: skip
    """A collective's own time: from the last rank's arrival to the common end."""
    for members in meetings.values():
        waited = _waited_us(run, programs, members)
        for rank, i in members.items() if len(members) > 1 else ():
            op, seen = ops[rank][i]
            own = max(_kernel(programs[rank], i).dur - waited[rank], C.SHORTEST_COLLECTIVE_US)
            ops[rank][i] = op, with_collective(seen, replace(of_collective(op, seen), measured_us=own))


def _waited_us(
    run: TraceRun, programs: Mapping[int, StepProgram], members: Mapping[int, int]
) -> dict[int, float]:
    """How long each rank of a collective waited for the last one to arrive."""
    base = {r.rank: r.base_us for r in run.ranks}
    arrived = {rank: base[rank] + _kernel(programs[rank], i).ts for rank, i in members.items()}
    return {rank: max(arrived.values()) - us for rank, us in arrived.items()}


def groups_of(run: TraceRun, programs: dict[int, StepProgram]) -> dict[str, tuple[Group, ...]]:
    """The process groups that the collectives name."""
    names = {c.group for p in programs.values() for _, t in _collectives(p) if (c := t.op.collective)}
    everyone = tuple(range(run.world_size))
    result: dict[str, tuple[Group, ...]] = {"world": (Group("world", everyone),)}
    for name in sorted(names - {"world"}):
        known = _sets_of(run, name) or _stated_sets(programs, name, run.world_size)
        result[name] = _covering(known, name, run.world_size)
    return result


def _stated_sets(programs: dict[int, StepProgram], name: str, world: int) -> list[Group]:
    """The sets of a group that its calls list; of calls that only count them, neighbouring ranks."""
    sets: dict[tuple[int, ...], Group] = {}
    for rank, program in programs.items():
        for _, traced in _collectives(program):
            call = traced.collective
            if call is None or call.group != name or not call.group_size:
                continue
            first = rank // call.group_size * call.group_size
            counted = tuple(range(first, first + call.group_size)) if world % call.group_size == 0 else ()
            members = call.members or counted
            if members and max(members) < world:
                sets.setdefault(members, Group(name, members))
    return list(sets.values())


def _covering(known: list[Group], name: str, world: int) -> tuple[Group, ...]:
    """The sets that traces name and like ones of the ranks without a trace, so that all belong to one."""
    everyone = set(range(world))
    rest = sorted(everyone - {r for g in known for r in g.ranks})
    if not known:
        return (Group(name, tuple(sorted(everyone))),)
    size = len(known[0].ranks)
    more = [Group(name, tuple(rest[i : i + size])) for i in range(0, len(rest), size)]
    return (*known, *more)


def _sets_of(run: TraceRun, name: str) -> list[Group]:
    sets: dict[tuple[int, ...], Group] = {}
    for rank in run.ranks:
        info = rank.linked.trace.distributed
        for group in (info.pg_config or ()) if info else ():
            if group.pg_name == name and group.ranks:
                sets[tuple(group.ranks)] = Group(name, tuple(group.ranks))
    return list(sets.values())


def collective_waiting(run: TraceRun, step: int) -> list[list[tuple[Event, float]]]:
    """Per rank the kernels of the step's collectives, each with its wait for the last rank of its group to
    arrive, in µs.

    Collectives that do not match between the ranks of their group are left out.
    """
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    groups = groups_of(run, programs)
    apart = unmatched(programs, groups) if len(programs) > 1 else {}
    waits: dict[int, list[tuple[int, float]]] = {rank: [] for rank in programs}
    for members in _meetings(programs, groups, apart).values():
        for rank, us in _waited_us(run, programs, members).items():
            waits[rank].append((members[rank], us))
    return [
        [(_kernel(programs[r.rank], i), waited) for i, waited in sorted(waits[r.rank])] for r in run.ranks
    ]


def unmatched(
    programs: Mapping[int, StepProgram], groups: Mapping[str, tuple[Group, ...]]
) -> dict[str, tuple[int, ...]]:
    """Groups whose recorded ranks call different collectives, with those ranks."""
    kinds: dict[str, dict[int, list[str]]] = {}
    for rank, program in programs.items():
        for traced in program.ops:
            c = traced.op.collective
            if c is not None:
                kinds.setdefault(c.group, {}).setdefault(rank, []).append(c.kind)
    found: dict[str, tuple[int, ...]] = {}
    for name, sets in groups.items():
        for members in sets:
            recorded = [r for r in members.ranks if r in programs]
            called = [kinds.get(name, {}).get(r, []) for r in recorded]
            if any(calls != called[0] for calls in called):
                found[name] = (*found.get(name, ()), *recorded)
    return found


def by_itself(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
    """The op with its collective as it was measured, waiting included, and without a meeting of ranks."""
    c = op.collective
    if c is None:
        return op, seen
    opaque = replace(of_collective(op, seen), opaque=True)
    alone = replace(c, group=_alone(c.group), send_bytes=None)
    return replace(op, collective=alone), with_collective(seen, opaque)


def _alone(group: str) -> str:
    """The name of a group's ranks as groups of one."""
    return f"{group} (unmatched)"


Calls = Mapping[tuple[str, int], tuple[Collective, Observation]]
"""A rank's collectives in one step: (group, which of the rank's calls on it) → the call, as observed."""
DelaysUs = Mapping[tuple[str, int], float]


def collective_calls(job: ObservedJob, program: int) -> dict[tuple[str, int], tuple[Collective, Observation]]:
    """A program's collectives by group and order."""
    return {
        call: (op.collective, of_collective(op, seen))
        for op, seen, call in _numbered(job, program)
        if op.collective is not None
    }


def _numbered(job: ObservedJob, program: int) -> Iterator[tuple[Op, OpObservations, tuple[str, int]]]:
    """The operators of a program, those with a collective by its group and which of the group's it is."""
    count: dict[str, int] = defaultdict(int)
    for op, seen in job.of_program(program):
        group = op.collective.group if op.collective else ""
        yield op, seen, (group, count[group])
        count[group] += 1


def host_delay_us(
    steps: Iterable[Calls], longest_us: Callable[[Collective], float] = lambda call: math.inf
) -> dict[tuple[str, int], float]:
    """How long after a recorded rank the others came to each of its calls: the median over steps.

    The observed times count from the last recorded arrival on. ``longest_us`` is what moving a call's data
    may take at most.
    """
    measured = [
        (call, c, seen.measured_us)
        for step in steps
        for call, (c, seen) in step.items()
        if seen.measured_us is not None and not seen.opaque
    ]
    own: dict[tuple[str, str, float], float] = {}
    for _, c, time_us in measured:
        own[_kind(c)] = min(own.get(_kind(c), math.inf), time_us)
    for _, c, _ in measured:
        if c.bytes > 0:
            own[_kind(c)] = min(own[_kind(c)], longest_us(c))
    waits: dict[tuple[str, int], list[float]] = defaultdict(list)
    for call, c, time_us in measured:
        waits[call].append(waited_us(time_us, own[_kind(c)]))
    return {call: float(np.median(us)) for call, us in waits.items()}


def waited_us(time_us: float, shortest_us: float) -> float:
    """What of a call's time is waiting, by the shortest call of its kind and size."""
    waited = time_us > C.LONGEST_CALL * shortest_us
    return time_us - C.TYPICAL_CALL * shortest_us if waited else 0.0


def with_late_peers(job: ObservedJob, recorded: Mapping[int, DelaysUs]) -> ObservedJob:
    """The job in which peers that were not recorded come late to the calls of the ranks that were."""
    seen = list(job.seen)
    for rank, late in recorded.items():
        index = job.job.program_of_rank[rank]
        seen[index] = _late(job, index, {
            call: us for call, us in late.items() if not _peers(job.job, rank, call[0]) <= recorded.keys()
        })  # fmt: skip
    return replace(job, seen=tuple(seen))


def without_late_peers(job: ObservedJob) -> ObservedJob:
    """The job in which nobody waits for ranks that were not recorded."""
    return replace(job, seen=tuple(_late(job, i, {}) for i in range(len(job.job.programs))))


def _late(job: ObservedJob, program: int, late: DelaysUs) -> tuple[OpObservations, ...]:
    return tuple(
        with_collective(seen, replace(of_collective(op, seen), late_us=late.get(call, 0.0)))
        if op.collective else seen
        for op, seen, call in _numbered(job, program)
    )  # fmt: skip


def _peers(job: Job, rank: int, group: str) -> set[int]:
    return {r for g in job.groups[group] if rank in g.ranks for r in g.ranks}


def _kind(c: Collective) -> tuple[str, str, float]:
    return c.group, c.kind, c.bytes
