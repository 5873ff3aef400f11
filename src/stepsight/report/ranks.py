"""Which ranks to draw: ranks that did exactly the same at the same time are one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from stepsight.prediction.breakdown import RankSummary
from stepsight.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks that ran the same program with the same times; the first speaks for all. ``number``: of the first
    in the real job, where the timeline shows some of its ranks."""

    ranks: tuple[int, ...]
    number: int | None = None

    @property
    def first(self) -> int:
        return self.ranks[0]

    @property
    def label(self) -> str:
        """``rank 3``, ``ranks 0–7``, ``ranks 0, 4, 8 and 13 more``."""
        if len(self.ranks) == 1:
            return f"rank {self.first if self.number is None else self.number:,}"
        if self.ranks == tuple(range(self.first, self.first + len(self.ranks))):
            return f"ranks {self.first:,}–{self.ranks[-1]:,}"
        listed = ", ".join(f"{rank:,}" for rank in self.ranks[:3])
        more = len(self.ranks) - 3
        return f"ranks {listed}" + (f" and {more:,} more" if more > 0 else "")


def identical_ranks(timeline: Timeline) -> list[RankSet]:
    """All ranks, gathered by what they did, in the order of their first."""
    found: dict[tuple[int, int, bytes], list[int]] = {}
    fold = timeline.priced.fold
    for number, (lane, times) in enumerate(zip(timeline.priced.lanes, timeline.times, strict=True)):
        for column, chosen in enumerate(lane.lane.ranks.tolist()):
            rank = fold.first[chosen]
            seen = blake2b(np.array([timeline.begin_us[rank], timeline.end_us[rank]]).tobytes())
            for part in (times.start_us, times.end_us, times.mark_us):
                seen.update(part[:, 0, column].tobytes())
            key = (number, int(lane.lane.program_of_rank[column]), seen.digest())
            found.setdefault(key, []).extend(fold.members(chosen))
    job = timeline.priced.job
    sets = (
        RankSet(tuple(sorted(ranks)), job.number(min(ranks)) if job.numbers else None)
        for ranks in found.values()
    )
    return sorted(sets, key=lambda a: a.first)


def identical_summaries(ranks: Sequence[RankSummary]) -> list[RankSet]:
    """All ranks, gathered by their figures (those of a stage, say), in the order of their first."""
    found: dict[RankSummary, list[int]] = {}
    for position, one in enumerate(ranks):
        found.setdefault(replace(one, rank=0), []).append(position)
    return [RankSet(tuple(positions)) for positions in found.values()]


def most_telling(sets: Sequence[RankSet], ranks: Sequence[RankSummary], most: int) -> list[RankSet]:
    """At most ``most`` of them: the busiest, the least busy, then the first ones, by rank."""
    if len(sets) <= most:
        return list(sets)
    by_compute = sorted(sets, key=lambda a: (-ranks[a.first].compute_us, a.first))
    wanted = dict.fromkeys([by_compute[0].first, by_compute[-1].first, *(a.first for a in sets)])
    kept = set(list(wanted)[: max(most, 1)])
    return [a for a in sets if a.first in kept]
