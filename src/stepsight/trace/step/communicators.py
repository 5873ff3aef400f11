"""Process groups that a trace does not name, and the clocks of ranks: what the ends of collectives tell.

A communicator has a stream of its own on every rank, and its members leave a collective together. So streams
of different ranks belong to one communicator where their collectives are of the same kinds in the same order
and end at the same moments. Sends and receives end when their own data is through: of the streams that are
left, those nearest in time are pairs. An all_gather or reduce_scatter that lists both its buffers states the
size of its group by itself. Hosts' clocks may be milliseconds apart: then every collective of one rank seems
to end that much before it does on another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.program.job import Group
from stepsight.trace.constants import CLOCKS_APART_US, MEMBERS_END_TOGETHER_US
from stepsight.trace.linking.link import LinkedTrace, is_collective_kernel
from stepsight.trace.sizing.collectives import WORLD, Communicator, is_named, kind_of, stated_group_size
from stepsight.trace.step.waits import StreamId

_P2P = "send_recv"


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """Which communicator each (rank, stream) carries, and the ranks of every group by its name."""

    of_stream: Mapping[tuple[int, StreamId], Communicator] = field(default_factory=dict)
    sets: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)

    def on_rank(self, rank: int) -> dict[StreamId, Communicator]:
        return {stream: found for (of, stream), found in self.of_stream.items() if of == rank}


@dataclass(frozen=True, slots=True)
class _Carrier:
    """The collectives of one stream of one rank."""

    rank: int
    stream: StreamId
    kinds: tuple[str, ...]
    ends_us: FloatArray
    size: int | None

    @property
    def is_p2p(self) -> bool:
        return set(self.kinds) == {_P2P}


def process_groups(ranks: Iterable[tuple[int, float, LinkedTrace]], world: int) -> ProcessGroups:
    """Groups of a run whose collectives name none; ``ranks`` gives number, clock base and trace of each."""
    carriers = [c for rank, base_us, linked in ranks for c in _carriers(rank, base_us, linked)]
    recorded = {c.rank for c in carriers}
    if len(carriers) == len(recorded) and not any(c.size not in (None, world) for c in carriers):
        return ProcessGroups()  # one stream a rank: everything is over the whole world
    if len(recorded) == world > 1:
        return _named(_joined(carriers), world)
    return _by_stated_size(carriers, world)


def _carriers(rank: int, base_us: float, linked: LinkedTrace) -> list[_Carrier]:
    by_stream: dict[StreamId, list[tuple[str, float, int | None]]] = defaultdict(list)
    for launch in linked.launches:
        event = launch.gpu[0]
        if is_collective_kernel(event) and not is_named(linked, launch):
            seen = kind_of(linked, launch), base_us + event.end, stated_group_size(linked, launch)
            by_stream[event.args.stream].append(seen)
    return [
        _Carrier(rank, stream, tuple(k for k, _, _ in seen), np.array([e for _, e, _ in seen]), _common(seen))
        for stream, seen in by_stream.items()
    ]


def _common(seen: Sequence[tuple[str, float, int | None]]) -> int | None:
    sizes = Counter(size for _, _, size in seen if size)
    return sizes.most_common(1)[0][0] if sizes else None


def _joined(carriers: list[_Carrier]) -> list[list[_Carrier]]:
    """Streams that carry one communicator, most of them by how near their collectives end."""
    pairs = sorted(
        (apart, i, j)
        for i, a in enumerate(carriers)
        for j, b in enumerate(carriers[:i])
        if (apart := _apart_us(a, b)) is not None
    )
    within = MEMBERS_END_TOGETHER_US
    group_of = {i: [i] for i in range(len(carriers))}
    for apart, i, j in pairs:
        first, second = group_of[i], group_of[j]
        p2p = carriers[i].is_p2p
        if first is second or (apart > within and not p2p):
            continue
        joined = [*first, *second]
        if len({carriers[k].rank for k in joined}) < len(joined) or len(joined) > _most(carriers, joined):
            continue
        for k in joined:
            group_of[k] = joined
    distinct = dict.fromkeys(tuple(sorted(group)) for group in group_of.values())
    return [[carriers[k] for k in group] for group in distinct]


def _most(carriers: list[_Carrier], joined: list[int]) -> int:
    """How many members a group may have: as many as its buffers say, two for sends and receives."""
    if carriers[joined[0]].is_p2p:
        return 2
    return min((size for k in joined if (size := carriers[k].size)), default=len(carriers))


def _apart_us(a: _Carrier, b: _Carrier) -> float | None:
    """How far apart the same collectives of two ranks end, the median; None where they are not the same."""
    if a.rank == b.rank or a.kinds != b.kinds:
        return None
    return float(np.median(np.abs(a.ends_us - b.ends_us)))


def _named(groups: list[list[_Carrier]], world: int) -> ProcessGroups:
    of_stream: dict[tuple[int, StreamId], Communicator] = {}
    sets: dict[str, tuple[Group, ...]] = {}
    for members in groups:
        ranks = tuple(sorted(c.rank for c in members))
        name = WORLD if len(ranks) == world else "ranks " + "+".join(map(str, ranks))
        if name in sets:
            name += f" ({sum(n.startswith(name) for n in sets) + 1})"
        sets[name] = (Group(name, ranks),)
        for carrier in members:
            of_stream[carrier.rank, carrier.stream] = Communicator(name, len(ranks))
    return ProcessGroups(of_stream, sets)


def _by_stated_size(carriers: list[_Carrier], world: int) -> ProcessGroups:
    """Groups of a run of which not every rank has a trace: neighbouring ranks, as many as the buffers say."""
    of_stream: dict[tuple[int, StreamId], Communicator] = {}
    sets: dict[str, tuple[Group, ...]] = {}
    for carrier in carriers:
        size = 2 if carrier.is_p2p and world > 2 else carrier.size
        if size is None or size >= world or world % size:
            of_stream[carrier.rank, carrier.stream] = Communicator(WORLD, None)
            continue
        name = f"{size} ranks, stream {carrier.stream}"
        of_stream[carrier.rank, carrier.stream] = Communicator(name, size)
        sets[name] = tuple(Group(name, tuple(range(first, first + size))) for first in range(0, world, size))
    return ProcessGroups(of_stream, sets)


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
    return offsets if max(map(abs, offsets), default=0.0) > CLOCKS_APART_US else [0.0] * len(ranks)


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
                if scatter <= MEMBERS_END_TOGETHER_US and (best is None or scatter < best[0]):
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
