"""Host times for a workload that was never run on a host, from other workloads and other hosts.

An operator costs different hosts about the same multiple of what it costs another: a host
(with its load and its profiler's settings) has a pace. Other hosts' times are brought to
one pace before they are joined, and to the wanted host's when they are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.overheads.gather import HostSample, trimmed_means
from stepsight.overheads.tables import op_class, stem
from stepsight.program.job import HostTimes

_CONSTANTS = area("overheads")
FEWEST_SHARED = _CONSTANTS.whole("FEWEST_SHARED")
FEWEST_TO_TRIM = _CONSTANTS.whole("FEWEST_TO_TRIM")
LEAST_US = _CONSTANTS.number("LEAST_US")
ROUNDS = _CONSTANTS.whole("ROUNDS")

Key = tuple[str | int, ...]
_PARTS_OF_PACE = ([0], [1, 2, 4], [3])
"""Gaps between operators (Python), the operators' inside, and the driver's launch calls are
slowed differently: by stack recording, by shape recording, by neither."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much longer a host takes than the common pace: between operators, inside them, per launch."""

    gap: float = 1.0
    inside: float = 1.0
    launch: float = 1.0

    def factors(self) -> FloatArray:
        """By part, T1 to T5."""
        return np.array([self.gap, self.inside, self.inside, self.launch, self.inside])


@dataclass(slots=True)
class HostPool:
    """The operators of one host: mean T1–T5, outliers trimmed, from the closest likeness to the widest."""

    samples: Sequence[HostSample]
    means: dict[Key, FloatArray] = field(default_factory=dict)
    """Without allocations, which no other host shares."""
    allocating: dict[Key, FloatArray] = field(default_factory=dict)
    """Mean time of allocations, by the same keys: rare and long, so nothing of them is trimmed."""

    def __post_init__(self) -> None:
        groups: dict[Key, list[tuple[FloatArray, FloatArray]]] = defaultdict(list)
        for sample in self.samples:
            whole, allocating = _row(sample.times), _row(sample.allocating)
            for key in _keys_of(sample):
                groups[key].append((np.maximum(whole - allocating, 0.0), allocating))
        for key, pairs in groups.items():
            self.means[key] = _typical(np.array([own for own, _ in pairs]))
            self.allocating[key] = np.array([a for _, a in pairs]).mean(axis=0)


@dataclass(slots=True)
class SharedTimes:
    """Host times by operator, from a host's own other workloads where they have it, else from other hosts.

    ``pace`` is the wanted host's. With workloads of its own it is told from those.
    """

    others: Sequence[HostPool]
    own: HostPool | None = None
    pace: Pace = Pace()
    _common: dict[Key, FloatArray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self._common:
            self._common = _at_common_pace(self.others)
        if self.own is not None:
            self.pace = self.pace_of(self.own.samples)

    def of(
        self, name: str, before: str, launches: int, recorded_ops: int = 1, place: str = ""
    ) -> HostTimes | None:
        """T1–T5 of an operator: as the host's own, as other hosts', as its class's."""
        keys = list(_keys(name, before, launches, recorded_ops, place))
        named, like = keys[:_NAMED], keys[_NAMED:]
        if self.own is not None and (key := _first(self.own.means, named)):
            return HostTimes(*map(float, self.own.means[key] + self.own.allocating[key]))
        if key := _first(self._common, [*named, *like]):
            return HostTimes(*map(float, self._common[key] * self.pace.factors()))
        if self.own is not None and (key := _first(self.own.means, like)):
            return HostTimes(*map(float, self.own.means[key]))
        return None

    def at(self, pace: Pace) -> SharedTimes:
        """The same for a host of another pace, none of whose workloads are known."""
        return SharedTimes(self.others, None, pace, self._common)

    def beside(self, own: HostPool) -> SharedTimes:
        """The same for a host that has run other workloads."""
        return SharedTimes(self.others, own, self.pace, self._common)

    def pace_of(self, samples: Iterable[HostSample]) -> Pace:
        """A host's pace: what operators that others have too take there in sum, over what they take here.

        In sum and not by the median: a step is a sum, and the long times rule it.
        """
        pairs = []
        for sample in samples:
            if key := _first(self._common, list(_keys_of(sample))[:_NAMED]):
                pairs.append((_row(sample.times) - _row(sample.allocating), self._common[key]))
        if len(pairs) < FEWEST_SHARED:
            return Pace()
        here, there = (np.sum([pair[side] for pair in pairs], axis=0) for side in (0, 1))
        return Pace(*(float(here[p].sum() / max(there[p].sum(), LEAST_US)) for p in _PARTS_OF_PACE))


_NAMED, _BY_LAUNCHES = 4, 2
"""How many of an operator's keys name it (the others name its like); how long the third is."""


def _keys_of(sample: HostSample) -> Iterator[Key]:
    return _keys(sample.name, sample.before, sample.launches, sample.recorded_ops, sample.place)


def _keys(name: str, before: str, launches: int, recorded_ops: int, place: str) -> Iterator[Key]:
    """What an operator is known by, the closest first."""
    own, kind = stem(name), op_class(name)
    launching = min(launches, 1)
    yield own, launches, stem(before), place
    yield own, launches, stem(before)
    yield own, launches
    yield own, "launching" if launching else "idle"
    yield "class", kind, min(launches, 2), min(recorded_ops, 4)
    yield "class", kind, launching
    yield "any", launching


def _row(times: HostTimes) -> FloatArray:
    return np.array([times.t1, times.t2, times.t3, times.t4, times.t5])


def _first(known: Mapping[Key, FloatArray], keys: Iterable[Key]) -> Key | None:
    return next((key for key in keys if key in known), None)


def _typical(rows: FloatArray) -> FloatArray:
    """Another workload's stalls are not ours: outliers go, and of few samples the median stays."""
    if len(rows) < FEWEST_TO_TRIM:
        return np.median(rows, axis=0)
    return trimmed_means(rows)


def _at_common_pace(pools: Sequence[HostPool]) -> dict[Key, FloatArray]:
    """All hosts' operators at one pace: each host's is the median of how its operators stand to the rest."""
    known = [pool for pool in pools if pool.means]
    if not known:
        return {}
    index: dict[Key, int] = {}
    for pool in known:
        for key in pool.means:
            index.setdefault(key, len(index))
    rows = [np.array([index[key] for key in pool.means]) for pool in known]
    tables = [np.array(list(pool.means.values())) for pool in known]
    several = np.bincount(np.concatenate(rows), minlength=len(index)) > 1
    compared = several & np.array([len(key) == _BY_LAUNCHES for key in index], dtype=bool)
    paces = [Pace() for _ in known]
    common = np.zeros((len(index), 5))
    for _ in range(ROUNDS):
        logs, hosts = np.zeros_like(common), np.zeros((len(index), 1))
        for at, table, pace in zip(rows, tables, paces, strict=True):
            logs[at] += np.log(table / pace.factors() + LEAST_US)
            hosts[at] += 1
        common = np.exp(logs / hosts) - LEAST_US
        paces = [
            _typical_pace(table[compared[at]], common[at[compared[at]]], pace)
            for at, table, pace in zip(rows, tables, paces, strict=True)
        ]
    return dict(zip(index, common, strict=True))


def _typical_pace(here: FloatArray, there: FloatArray, default: Pace) -> Pace:
    """The median ratio of a host's operators to the common ones; too few leave the default."""
    factors = []
    for part, given in zip(_PARTS_OF_PACE, (default.gap, default.inside, default.launch), strict=True):
        mine, common = here[:, part].sum(axis=1), there[:, part].sum(axis=1)
        both = (mine > LEAST_US) & (common > LEAST_US)
        factors.append(float(np.median(mine[both] / common[both])) if both.sum() >= FEWEST_SHARED else given)
    return Pace(*factors)
