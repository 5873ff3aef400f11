"""The clocks of ranks, by the ends of collectives.

The members of a communicator leave a collective together. Hosts' clocks may be milliseconds apart: then every
collective of one rank seems to end that much before it does on another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.trace.constants import CLOCKS_APART_US, MEMBERS_END_TOGETHER_US
from stepsight.trace.linking.link import LinkedTrace, is_collective_kernel

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
