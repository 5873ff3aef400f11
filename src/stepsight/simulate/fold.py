"""Ranks that are identical are walked once.

Two ranks are identical when they run the same program from the same start and every collective joins them
with ranks that are identical, lying on the nodes in the same way. Their clocks then agree at every moment,
so one rank stands for its class: 4,096 ranks of 64 replicas × 8 stages × 8 tensor shares are 8 classes.
The classes are found by refinement: begin with the programs, split by the groups' members until nothing
splits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.program.job import Collective, Group, Job
from stepsight.simulate.rendezvous import sets_by_size

Finish = Callable[[Collective, Group], FloatArray]


@dataclass(frozen=True, slots=True)
class Fold:
    """``job`` has one rank for every class; ``of_rank`` is the class of each rank of the whole job.

    ``first`` is the first rank of the whole job in each class, ``count`` how many there are.
    """

    job: Job
    of_rank: IntArray
    first: IntArray
    count: IntArray

    def members(self, chosen: int) -> list[int]:
        """The ranks of the whole job in one class."""
        return [int(rank) for rank in np.flatnonzero(self.of_rank == chosen)]


def unfolded(job: Job) -> Fold:
    """Every rank a class of its own."""
    ranks = np.arange(job.ranks)
    return Fold(job, ranks, ranks, np.ones(job.ranks, dtype=np.int64))


def fold(job: Job, ranks_per_node: int, finish_us: Finish) -> Fold:
    """The job with one rank for every class of ranks that are identical.

    ``finish_us`` gives when each rank of a set is done with a collective in which ranks move bytes of
    their own.
    """
    used, unbalanced = _collectives(job)
    matrices = {name: sets_by_size(job.groups[name]) for name in sorted(used & set(job.groups))}
    missing = used - set(job.groups)
    if missing:
        raise StepsightError(
            f"a collective names process group {min(missing)!r}, which the job does not have"
        )
    colour = _numbered(np.array(job.program_of_rank), _starts(job))
    for m in matrices.values():
        colour = _numbered(colour, *_places(job.ranks, m, ranks_per_node))
    for collective in unbalanced:
        colour = _numbered(colour, _by_finish(job, collective, finish_us))
    while True:
        split = _numbered(colour, *(_company(colour, m) for m in matrices.values()))
        if split.max() == colour.max():
            break
        colour = split
    return _folded(job, colour, matrices)


def _collectives(job: Job) -> tuple[set[str], list[Collective]]:
    """The groups that collectives name, and the collectives in which each rank moves bytes of its own."""
    distinct = {id(op.collective): op.collective for op in job.distinct_ops() if op.collective}
    unbalanced = {id(c.send_bytes): c for c in distinct.values() if c.send_bytes is not None}
    return {c.group for c in distinct.values()}, list(unbalanced.values())


def _by_finish(job: Job, collective: Collective, finish_us: Finish) -> IntArray:
    """Ranks that are done with a collective at the same time share a number."""
    times = np.full(job.ranks, -1.0)
    for group in job.groups[collective.group]:
        times[list(group.ranks)] = finish_us(collective, group)
    return np.unique(times, return_inverse=True)[1].reshape(-1)


def _starts(job: Job) -> IntArray:
    if not job.start_us:
        return np.zeros(job.ranks, dtype=np.int64)
    return np.unique(np.array(job.start_us), return_inverse=True)[1]


def _places(ranks: int, matrices: list[IntArray], ranks_per_node: int) -> tuple[IntArray, ...]:
    """How large each rank's set is, on how many nodes it lies, and how many of it share a node."""
    found = [np.full(ranks, -1, dtype=np.int64) for _ in range(3)]
    for rows in matrices:
        nodes, per_node = layout(rows, ranks_per_node)
        size = np.full(rows.shape, rows.shape[1])
        wide = [np.broadcast_to(a[:, None], rows.shape) for a in (nodes, per_node)]
        for column, values in zip(found, (size, *wide), strict=True):
            column[rows] = values
    return tuple(found)


def layout(rows: IntArray, ranks_per_node: int) -> tuple[IntArray, IntArray]:
    """Of every set (a row) on how many nodes it lies, and how many of its ranks share one at most."""
    node = np.sort(rows // ranks_per_node, axis=1)
    nodes = 1 + (np.diff(node, axis=1) != 0).sum(axis=1)
    per_node = np.ones(len(rows), dtype=np.int64)
    for k in range(2, min(ranks_per_node, rows.shape[1]) + 1):
        per_node[(node[:, k - 1 :] == node[:, : node.shape[1] - k + 1]).any(axis=1)] = k
    return nodes, per_node


def _company(colour: IntArray, matrices: list[IntArray]) -> IntArray:
    """With which colours each rank's set brings it together."""
    found = np.full(len(colour), -1, dtype=np.int64)
    seen = 0
    for rows in matrices:
        number = np.unique(np.sort(colour[rows], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        found[rows] = seen + number[:, None]
        seen += int(number.max()) + 1
    return found


def _numbered(*columns: IntArray) -> IntArray:
    """One number for every distinct combination of the columns' values."""
    result = columns[0]
    for column in columns[1:]:
        pair = result * (int(column.max()) + 2) + (column + 1)
        result = np.unique(pair, return_inverse=True)[1].reshape(-1)
    return np.unique(result, return_inverse=True)[1].reshape(-1)


def _folded(job: Job, colour: IntArray, matrices: dict[str, list[IntArray]]) -> Fold:
    _, first, of_rank, count = np.unique(colour, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    rank_of_class = np.empty_like(order)
    rank_of_class[order] = np.arange(len(order))
    of_rank, first, count = rank_of_class[of_rank.reshape(-1)], first[order], count[order]
    if len(first) == job.ranks:
        return unfolded(job)
    groups = {}
    for name, sets in matrices.items():
        rows_of = (np.unique(np.sort(of_rank[rows], axis=1), axis=0) for rows in sets)
        distinct = {tuple(np.unique(row).tolist()) for rows in rows_of for row in rows}
        groups[name] = tuple(Group(f"{name} {i}", ranks) for i, ranks in enumerate(sorted(distinct)))
    programs = tuple(job.program_of_rank[r] for r in first.tolist())
    starts = tuple(job.start_us[r] for r in first.tolist()) if job.start_us else ()
    return Fold(Job(job.programs, programs, groups, starts), of_rank, first, count)
