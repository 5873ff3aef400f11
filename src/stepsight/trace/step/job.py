"""A trace's step as a `Job`: programs of all ranks, their groups and their start skew."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from stepsight.program.job import Group, Job, Op, RankProgram
from stepsight.trace.linking.link import is_collective_kernel
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.guessing.collective_sizes import with_sizes
from stepsight.trace.step.matching import by_itself, unmatched
from stepsight.trace.step.program import StepProgram, TracedOp, step_program
from stepsight.trace.step.run import RankTrace, TraceRun

SHORTEST_COLLECTIVE_US = RULES.value("shortest_collective")


def rank_program(run: TraceRun, rank: RankTrace, step: int) -> StepProgram:
    """One rank's step, with the host times that the trace shows."""
    if step not in rank.built:
        groups = run.groups.on_rank(rank.rank)
        rank.built[step] = with_sizes(
            step_program(rank.facts, rank.units, rank.steps[step], rank.resolver, run.world_size, groups)
        )
    return rank.built[step]


def host_program(run: TraceRun, rank: RankTrace, step: int) -> StepProgram:
    """One rank's step with its host times, kernels not sized: a sized one serves where there is one."""
    if step in rank.built:
        return rank.built[step]
    if step not in rank.host_only:
        groups = run.groups.on_rank(rank.rank)
        rank.host_only[step] = step_program(
            rank.facts, rank.units, rank.steps[step], rank.resolver, run.world_size, groups, sized=False
        )
    return rank.host_only[step]


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


def job_of(run: TraceRun, programs: dict[int, StepProgram]) -> Job:
    """Join rank programs: collectives lose their waiting, groups and start skew are added."""
    order = sorted(programs)
    ops = {r: [t.op for t in programs[r].ops] for r in order}
    groups = groups_of(run, programs)
    if len(order) > 1:
        for name, ranks in unmatched(programs, groups).items():
            for r in ranks:
                ops[r] = [by_itself(o) if o.collective and o.collective.group == name else o for o in ops[r]]
        _without_waiting(run, programs, ops)
    distinct = {r: RankProgram(tuple(ops[r]), f"rank {r}") for r in order}
    stand_in = _stand_ins(run, order)
    index = {r: i for i, r in enumerate(order)}
    return Job(
        tuple(distinct[r] for r in order),
        tuple(index[stand_in[r]] for r in range(run.world_size)),
        groups,
        _starts(run, programs, stand_in),
    )


def _stand_ins(run: TraceRun, order: list[int]) -> dict[int, int]:
    return {r: r if r in order else order[r % len(order)] for r in range(run.world_size)}


def _starts(run: TraceRun, programs: dict[int, StepProgram], stand_in: dict[int, int]) -> tuple[float, ...]:
    base = {r.rank: r.base_us + programs[r.rank].start_us for r in run.ranks}
    first = min(base.values())
    return tuple(base[stand_in[r]] - first for r in range(run.world_size))


def _collectives(program: StepProgram) -> list[tuple[int, TracedOp]]:
    return [(i, t) for i, t in enumerate(program.ops) if t.op.collective is not None]


def _without_waiting(run: TraceRun, programs: dict[int, StepProgram], ops: dict[int, list[Op]]) -> None:
    """A collective's own time: from the last rank's arrival to the common end."""
    base = {r.rank: r.base_us for r in run.ranks}
    calls: dict[tuple[str, int], list[tuple[int, int, float, float]]] = defaultdict(list)
    for rank, program in programs.items():
        count: dict[str, int] = defaultdict(int)
        for i, traced in _collectives(program):
            if ops[rank][i].collective is None:
                continue
            group = traced.op.collective.group if traced.op.collective else ""
            event = traced.launches[-1].gpu[0]
            key = (group, count[group])
            count[group] += 1
            calls[key].append((rank, i, base[rank] + event.ts, base[rank] + event.end))
    for members in calls.values():
        if len(members) < 2:
            continue
        last_arrival = max(start for _, _, start, _ in members)
        for rank, i, _, end in members:
            op = ops[rank][i]
            own = max(end - last_arrival, SHORTEST_COLLECTIVE_US)
            if op.collective is not None:
                ops[rank][i] = replace(op, collective=replace(op.collective, measured_us=own))


def groups_of(run: TraceRun, programs: dict[int, StepProgram]) -> dict[str, tuple[Group, ...]]:
    """The process groups that the collectives name."""
    names = {c.group for p in programs.values() for _, t in _collectives(p) if (c := t.op.collective)}
    everyone = tuple(range(run.world_size))
    result: dict[str, tuple[Group, ...]] = {"world": (Group("world", everyone),)}
    for name in sorted(names - {"world"}):
        result[name] = run.groups.sets.get(name) or _covering(_sets_of(run, name), name, run.world_size)
    return result


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


def collective_waiting(run: TraceRun, step: int) -> list[list[float]]:
    """Per rank and collective of the step, the wait for the last rank to arrive, in µs."""
    starts = []
    for rank in run.ranks:
        program = rank_program(run, rank, step)
        kernels = [x.gpu[0] for t in program.ops for x in t.launches if is_collective_kernel(x.gpu[0])]
        starts.append([rank.base_us + k.ts for k in kernels])
    count = min(len(s) for s in starts)
    table = np.array([s[:count] for s in starts]).reshape(len(starts), count)
    return [list(map(float, row)) for row in (table.max(axis=0) - table)] if count else [[] for _ in starts]
