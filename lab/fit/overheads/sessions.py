"""Host overheads of profiled sessions, brought to one pace and joined.

Hosts of one era differ threefold, and profilers by what they were known to record. So from
every session (one trace) its own recording is taken out, then it is brought to the pace of
a reference by the operators that both have, and only then do sessions vote on an operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.overheads.gather import PROFILER_CPU_EVENT_US, Gathered
from stepsight.overheads.tables import OpStats, Stat, filled, stem

_FEWEST = 3
"""An operator seen less often than this in a session has no vote on it."""
_FEWEST_COMMON = 5
"""Operators that a session must share with the reference for its pace to be known."""
_LEAST_US = 0.5
"""Shorter gaps say nothing of a host's pace: half of the clock's µs."""

Ops = Mapping[str, OpStats]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How much longer a host takes than the common pace: between operators, inside them, per launch."""

    gap: float = 1.0
    inside: float = 1.0
    launch: float = 1.0

    def factors(self) -> FloatArray:
        """By part, T1 to T5."""
        return np.array([self.gap, self.inside, self.inside, self.launch, self.inside])


@dataclass(frozen=True, slots=True)
class ProfiledSession:
    """One trace's operators and launch calls, its own recording taken out.

    ``host`` names its machine, ``recording_us`` is what recording one operator took there.
    """

    host: str
    ops: Ops
    calls: Mapping[str, Stat]
    recording_us: float = PROFILER_CPU_EVENT_US

    @classmethod
    def of(cls, host: str, gathered: Gathered) -> ProfiledSession:
        cost = gathered.recording_cost()
        table = gathered.overheads(host, "", cost)
        ops = {n: o for n, o in table.ops.items() if _seen(o) >= _FEWEST}
        return cls(host, ops, table.launches, cost[0])

    def pace(self, reference: Ops) -> Pace | None:
        """How much longer it takes than the reference, by the median operator; None if too few are common."""
        known = {stem(name): stats for name, stats in reference.items()}
        pairs = [(stats, known[stem(name)]) for name, stats in self.ops.items() if stem(name) in known]
        inside = [a.t2.mean / b.t2.mean for a, b in pairs if a.t2 and b.t2]
        gaps = [a.t1.mean / b.t1.mean for a, b in pairs if a.t1 and b.t1 and a.t1.mean > _LEAST_US]
        if len(inside) < _FEWEST_COMMON:
            return None
        within = float(np.median(inside))
        # A launch call is slower on a slower host just as operators are; its own ratio would
        # need a reference that nobody measured without a profiler.
        return Pace(float(np.median(gaps)) if len(gaps) >= _FEWEST_COMMON else 1.0, within, within)

    def at(self, pace: Pace) -> ProfiledSession:
        """The same as a host of the reference's pace would show it."""
        back = Pace(1 / pace.gap, 1 / pace.inside, 1 / pace.launch)
        calls = {name: stat.scaled(back.launch) for name, stat in self.calls.items()}
        return ProfiledSession(self.host, paced(self.ops, back), calls, self.recording_us)


def joined(sessions: Sequence[ProfiledSession], reference: Ops) -> tuple[ProfiledSession, Pace]:
    """All sessions at the reference's pace, a vote to each host, and the hosts' usual pace.

    The less recording disturbed a host, the more its pace counts. Gaps of a profiled trace hold
    what the profiler did between operators, which nothing tells apart: the usual host's
    Python is taken to be as fast as its operators are.
    """
    by_host: dict[str, list[ProfiledSession]] = defaultdict(list)
    for session in sessions:
        by_host[session.host].append(session)
    hosts, inside, weights = [], [], []
    for found in by_host.values():
        together = _vote(found)
        usual = together.pace(reference)
        if usual is not None:
            hosts.append(_vote([session.at(session.pace(reference) or usual) for session in found]))
            inside.append(usual.inside)
            weights.append(1 / together.recording_us)
    typical = float(np.exp(np.average(np.log(inside), weights=weights))) if inside else 1.0
    return _vote(hosts), Pace(typical, typical, typical)


def paced(ops: Ops, pace: Pace) -> dict[str, OpStats]:
    """The same operators on a host of that pace."""

    def times(stat: Stat | None, factor: float) -> Stat | None:
        return stat.scaled(factor) if stat is not None else None

    return {
        name: OpStats(
            times(o.t1, pace.gap), times(o.t2, pace.inside), times(o.t3, pace.inside),
            times(o.t4, pace.launch), times(o.t5, pace.inside), times(o.whole, pace.inside),
        )
        for name, o in ops.items()
    }  # fmt: skip


def over(first: Ops, second: Ops) -> dict[str, OpStats]:
    """The first's operators, what it lacks from the second; spellings of one operator are one."""
    mine, theirs = (
        {stem(name): (name, stats) for name, stats in newest_spelling(ops).items()} for ops in (first, second)
    )
    made = {}
    for key in sorted({*mine, *theirs}):
        found = [ops[key] for ops in (mine, theirs) if key in ops]
        made[_newest([name for name, _ in found])] = filled(found[0][1], found[-1][1])
    return made


def newest_spelling(ops: Ops) -> dict[str, OpStats]:
    """Overloads that torch's versions number differently as one operator, by its newest name."""
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in sorted(ops):
        spelled[stem(name)].append(name)
    return {
        _newest(names): _middle_op([ops[n] for n in names]) if len(names) > 1 else ops[names[0]]
        for names in spelled.values()
    }


def _newest(names: list[str]) -> str:
    """The overload number came late: AddmmBackward was AddmmBackward0's name."""
    return max(names, key=lambda name: (len(name), name))


def _vote(sessions: Sequence[ProfiledSession]) -> ProfiledSession:
    """The median session, operator by operator and part by part."""
    return ProfiledSession(
        ", ".join(dict.fromkeys(s.host for s in sessions)),
        newest_spelling(_by_name((s.ops for s in sessions), _middle_op)),
        _by_name((s.calls for s in sessions), median_stat),
        float(np.median([s.recording_us for s in sessions])) if sessions else PROFILER_CPU_EVENT_US,
    )


def _by_name(tables: Iterable[Mapping[str, _T]], join: Callable[[list[_T]], _T]) -> dict[str, _T]:
    found: dict[str, list[_T]] = defaultdict(list)
    for table in tables:
        for name, entry in table.items():
            found[name].append(entry)
    return {name: join(entries) for name, entries in sorted(found.items())}


def _middle_op(many: list[OpStats]) -> OpStats:
    def part(name: str) -> Stat | None:
        known = [s for s in (getattr(o, name) for o in many) if s is not None]
        return median_stat(known) if known else None

    return OpStats(*(part(name) for name in OpStats.__struct_fields__))


def _seen(stats: OpStats) -> int:
    return max((s.count for s in (stats.t2, stats.whole) if s is not None), default=0)


def median_stat(stats: Sequence[Stat]) -> Stat:
    """The middle one of several, one vote each, however many samples it has."""
    means = [s.mean for s in stats]
    spread = float(np.sqrt(np.mean([s.std**2 for s in stats]) + np.var(means)))
    cost = float(np.median([s.profiler_us for s in stats]))
    return Stat(float(np.median(means)), spread, sum(s.count for s in stats), cost)


def pooled_stat(stats: Sequence[Stat]) -> Stat:
    """The statistics of all samples together."""
    n = np.array([max(s.count, 1) for s in stats], dtype=np.float64)
    means = np.array([s.mean for s in stats])
    mean = float(np.average(means, weights=n))
    variance = np.average(np.array([s.std for s in stats]) ** 2 + (means - mean) ** 2, weights=n)
    cost = np.average([s.profiler_us for s in stats], weights=n)
    return Stat(mean, float(np.sqrt(variance)), int(sum(s.count for s in stats)), float(cost))
