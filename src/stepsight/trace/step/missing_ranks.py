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

from stepsight.program.job import Collective, Job
from stepsight.program.observation import (
    Observation,
    ObservedJob,
    OpObservations,
    of_collective,
    with_collective,
)
from stepsight.trace.constants import LONGEST_CALL, TYPICAL_CALL

Calls = Mapping[tuple[str, int], tuple[Collective, Observation]]
"""A rank's collectives in one step: (group, which of the rank's calls on it) → the call, as observed."""
DelaysUs = Mapping[tuple[str, int], float]


def collective_calls(job: ObservedJob, program: int) -> dict[tuple[str, int], tuple[Collective, Observation]]:
    """A program's collectives by group and order."""
    found: dict[tuple[str, int], tuple[Collective, Observation]] = {}
    count: dict[str, int] = defaultdict(int)
    for op, seen in job.of_program(program):
        c = op.collective
        if c is not None:
            found[c.group, count[c.group]] = c, of_collective(op, seen)
            count[c.group] += 1
    return found


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
    waited = time_us > LONGEST_CALL * shortest_us
    return time_us - TYPICAL_CALL * shortest_us if waited else 0.0


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
    made: list[OpObservations] = []
    count: dict[str, int] = defaultdict(int)
    for op, seen in job.of_program(program):
        c = op.collective
        if c is not None:
            late_us = late.get((c.group, count[c.group]), 0.0)
            seen = with_collective(seen, replace(of_collective(op, seen), late_us=late_us))
            count[c.group] += 1
        made.append(seen)
    return tuple(made)


def _peers(job: Job, rank: int, group: str) -> set[int]:
    return {r for g in job.groups[group] if rank in g.ranks for r in g.ranks}


def _kind(c: Collective) -> tuple[str, str, float]:
    return c.group, c.kind, c.bytes
