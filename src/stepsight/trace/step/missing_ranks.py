"""How late the ranks came that have no trace, as the run's other steps show it.

A collective of a rank whose peers were not recorded holds its own time and the wait for the last
of them. Calls of one kind and size move the same data: what one of them takes far longer than the
shortest is waiting. Peers may also be late every time: then the shortest itself waited, and what it took
beyond the longest that the platform's links may need was waiting. How long it moves data remains the model's
to say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from stepsight.program.job import Collective, Job, RankProgram
from stepsight.trace.rules import RULES

Calls = Mapping[tuple[str, int], Collective]
"""A rank's collectives in one step: (group, which of the rank's calls on it) → the call."""
Lateness = Mapping[tuple[str, int], float]
TYPICAL, LONGEST = "typical_call", "longest_call"


def collective_calls(program: RankProgram) -> dict[tuple[str, int], Collective]:
    """The program's collectives by group and order."""
    found: dict[tuple[str, int], Collective] = {}
    count: dict[str, int] = defaultdict(int)
    for c in (op.collective for op in program.ops):
        if c is not None:
            found[c.group, count[c.group]] = c
            count[c.group] += 1
    return found


def host_delay_us(
    steps: Iterable[Calls], longest_us: Callable[[Collective], float] = lambda call: math.inf
) -> dict[tuple[str, int], float]:
    """How long after a recorded rank the others came to each of its calls: the median over steps.

    The calls carry their times from the last recorded arrival on. ``longest_us`` is what moving a call's data
    may take at most.
    """
    seen = [(call, c) for step in steps for call, c in step.items()]
    times: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for _, c in seen:
        if c.measured_us is not None:
            times[_kind(c)].append(c.measured_us)
    waits: dict[tuple[str, int], list[float]] = defaultdict(list)
    own = {kind: min(us) for kind, us in times.items()}
    for _, c in seen:
        if c.measured_us is not None and c.bytes > 0:
            own[_kind(c)] = min(own[_kind(c)], longest_us(c))
    for call, c in seen:
        if c.measured_us is not None:
            waits[call].append(waited_us(c.measured_us, own[_kind(c)]))
    return {call: float(np.median(us)) for call, us in waits.items()}


def waited_us(time_us: float, shortest_us: float) -> float:
    """What of a call's time is waiting, by the shortest call of its kind and size."""
    waited = time_us > RULES.value(LONGEST) * shortest_us
    return time_us - RULES.value(TYPICAL) * shortest_us if waited else 0.0


def with_late_peers(job: Job, recorded: Mapping[int, Lateness]) -> Job:
    """The job in which peers that were not recorded come late to the calls of the ranks that were."""
    programs = list(job.programs)
    for rank, late in recorded.items():
        index = job.program_of_rank[rank]
        programs[index] = _late(programs[index], {
            call: us for call, us in late.items() if not _peers(job, rank, call[0]) <= recorded.keys()
        })  # fmt: skip
    return replace(job, programs=tuple(programs))


def without_late_peers(job: Job) -> Job:
    """The job in which nobody waits for ranks that were not recorded."""
    return replace(job, programs=tuple(_late(p, {}) for p in job.programs))


def _late(program: RankProgram, late: Lateness) -> RankProgram:
    ops = list(program.ops)
    count: dict[str, int] = defaultdict(int)
    for i, op in enumerate(ops):
        c = op.collective
        if c is not None:
            ops[i] = replace(op, collective=replace(c, late_us=late.get((c.group, count[c.group]), 0.0)))
            count[c.group] += 1
    return replace(program, ops=tuple(ops))


def _peers(job: Job, rank: int, group: str) -> set[int]:
    return {r for g in job.groups[group] if rank in g.ranks for r in g.ranks}


def _kind(c: Collective) -> tuple[str, str, float]:
    return c.group, c.kind, c.bytes
